import pytest

from rolecall.spec.token import attempt_of, attempt_token, gang_secret


def test_each_attempt_has_its_own_token() -> None:
    tokens = {attempt_token(secret, job, attempt) for secret in ("a", "b") for job in ("x", "y") for attempt in (1, 2)}
    assert len(tokens) == 8
    assert attempt_token("a", "x", 1) == attempt_token("a", "x", 1)


def test_each_gang_has_its_own_secret_which_is_not_a_token() -> None:
    secrets = {gang_secret(key, job, attempt) for key in ("a", "b") for job in ("x", "y") for attempt in (1, 2)}
    assert len(secrets) == 8
    assert attempt_token("a", "x", 1) not in secrets


def test_a_token_identifies_its_attempt() -> None:
    assert attempt_of("a", "x", attempt_token("a", "x", 12)) == 12


@pytest.mark.parametrize(
    "forged",
    [
        attempt_token("b", "x", 1),
        attempt_token("a", "y", 1),
        "2." + attempt_token("a", "x", 1).partition(".")[2],
        "0" + attempt_token("a", "x", 1),
        attempt_token("a", "x", 1).upper(),
        attempt_token("a", "x", 1) + "\n",
        "1." + "é" * 64,
        "1" * 65,
        "",
    ],
)
def test_forged_tokens_are_rejected(forged: str) -> None:
    assert attempt_of("a", "x", forged) is None
