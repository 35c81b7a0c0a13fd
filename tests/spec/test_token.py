from rolecall.spec.token import attempt_token, gang_secret


def test_a_token_opens_one_attempt_only() -> None:
    tokens = {attempt_token(secret, job, attempt) for secret in ("a", "b") for job in ("x", "y") for attempt in (1, 2)}
    assert len(tokens) == 8
    assert attempt_token("a", "x", 1) == attempt_token("a", "x", 1)


def test_a_gang_s_secret_is_its_own_and_no_token() -> None:
    secrets = {gang_secret(key, job, attempt) for key in ("a", "b") for job in ("x", "y") for attempt in (1, 2)}
    assert len(secrets) == 8
    assert attempt_token("a", "x", 1) not in secrets
