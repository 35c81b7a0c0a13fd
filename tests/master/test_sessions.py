"""Sessions of browsers: whom they stand for, and when they end."""

from datetime import UTC, datetime, timedelta

import pytest

from rolecall.master.access import Access, Known, Principal
from rolecall.master.sessions import LIFETIME, Sessions
from rolecall.spec.access import Scope
from rolecall.spec.token import digest_of

START = datetime(2026, 1, 1, tzinfo=UTC)
ALICE = Principal("alice", frozenset({Scope.SUBMIT}))
DOTTED = Principal("a.b.1", frozenset({Scope.READ}))


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(clock: Clock) -> Access:
    access = Access([], clock)
    access.replace([Known(digest_of("secret"), ALICE), Known(digest_of("dotted"), DOTTED)])
    return access


@pytest.fixture
def sessions(access: Access, clock: Clock) -> Sessions:
    return Sessions(access, "key", clock)


def begin(sessions: Sessions, token: str = "secret") -> str:
    session = sessions.start(token)
    assert session is not None
    return session


def test_a_session_stands_for_its_token_until_it_expires(sessions: Sessions, access: Access, clock: Clock) -> None:
    session = begin(sessions)
    assert "secret" not in session
    assert sessions.principal(session) == ALICE
    assert sessions.principal(begin(sessions, "dotted")) == DOTTED
    clock.now += LIFETIME - timedelta(seconds=1)
    assert sessions.principal(session) == ALICE
    assert access.used["alice"] == clock.now
    clock.now += timedelta(seconds=1)
    assert sessions.principal(session) is None


def test_a_session_ends_with_its_token(sessions: Sessions, access: Access, clock: Clock) -> None:
    session = begin(sessions)
    until = START + timedelta(hours=1)
    access.replace([Known(digest_of("secret"), ALICE, until), Known(digest_of("rotated"), ALICE)])
    assert sessions.principal(session) == ALICE
    clock.now = until
    assert sessions.principal(session) is None
    assert sessions.principal(begin(sessions, "rotated")) == ALICE
    access.replace([])
    assert sessions.start("rotated") is None


def test_forged_sessions_are_refused(sessions: Sessions, access: Access, clock: Clock) -> None:
    name, expires, mac = begin(sessions).rsplit(".", 2)
    forged = [
        "",
        "..",
        mac,
        f"{name}.{expires}.",
        f"{name}.{int(expires) + 1}.{mac}",
        f"a.b.1.{expires}.{mac}",
        f"{name}.{expires}.{mac[:-1]}{'0' if mac[-1] != '0' else '1'}",
        f"{name}.{expires}.{mac}\n",
        f"{name}.٣.{mac}",
        f"{name}.{'9' * 500}.{mac}",
    ]
    assert [sessions.principal(one) for one in forged] == [None] * len(forged)
    assert Sessions(access, "another key", clock).principal(f"{name}.{expires}.{mac}") is None
