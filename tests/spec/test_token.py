import pytest

from rolecall.spec.token import attempt_of, attempt_token, gang_secret


def test_a_token_opens_one_attempt_only() -> None:
    tokens = {attempt_token(secret, job, attempt) for secret in ("a", "b") for job in ("x", "y") for attempt in (1, 2)}
    assert len(tokens) == 8
    assert attempt_token("a", "x", 1) == attempt_token("a", "x", 1)


def test_a_gang_s_secret_is_its_own_and_no_token() -> None:
    secrets = {gang_secret(key, job, attempt) for key in ("a", "b") for job in ("x", "y") for attempt in (1, 2)}
    assert len(secrets) == 8
    assert attempt_token("a", "x", 1) not in secrets


def test_a_token_says_and_proves_whose_it_is() -> None:
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
def test_no_other_token_is_taken_for_it(forged: str) -> None:
    assert attempt_of("a", "x", forged) is None
