from rolecall.spec.token import attempt_token


def test_a_token_opens_one_attempt_only() -> None:
    tokens = {attempt_token(secret, job, attempt) for secret in ("a", "b") for job in ("x", "y") for attempt in (1, 2)}
    assert len(tokens) == 8
    assert attempt_token("a", "x", 1) == attempt_token("a", "x", 1)
