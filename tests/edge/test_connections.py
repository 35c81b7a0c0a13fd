# pyright: standard
"""The limited protocol, without sockets. `security/test_edge` and `security/test_crowd` test it with sockets."""

import json
import resource
from http import HTTPStatus

import h11
import pytest

from rolecall.edge.connection_table import ConnectionLimits, Group, LimitExceeded, Owner
from rolecall.edge.connections import (
    _problem_response,  # pyright: ignore[reportPrivateUsage]
    claim,
    raise_open_file_limit,
)

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (256, UNLIMITED, (1124, UNLIMITED)),
        (256, 4096, (1124, 4096)),
        (256, 1000, (1000, 1000)),
        (1000, 1000, None),
        (2000, 4096, None),
        (UNLIMITED, UNLIMITED, None),
    ],
)
def test_the_limit_for_open_files_is_raised_as_far_as_allowed_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: tuple[int, int] | None
) -> None:
    raised: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: raised.append((kind, limits)))
    raise_open_file_limit(ConnectionLimits(connections=100))
    assert raised == ([] if expected is None else [(resource.RLIMIT_NOFILE, expected)])


def test_a_request_is_claimed_for_the_owner_of_its_token_where_connections_are_counted() -> None:
    refusal = LimitExceeded("2 connections of this token's are open already", by_owner=True)
    owners: list[Owner] = []

    def extension(owner: Owner) -> LimitExceeded:
        owners.append(owner)
        return refusal

    assert claim({"extensions": {"rolecall.claim": extension}}, Group.USERS, "alice") is refusal
    assert owners == [Owner(Group.USERS, "alice")]
    assert claim({"extensions": {}}, Group.USERS, "alice") is None
    assert claim({}, Group.USERS, "alice") is None, "another server counts no connections"


@pytest.mark.parametrize("status", [HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.SERVICE_UNAVAILABLE])
def test_a_rejection_is_a_complete_response_after_which_the_connection_closes(status: HTTPStatus) -> None:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "master")]))
    client.send(h11.EndOfMessage())
    client.receive_data(_problem_response(status, "zu spät\r\nX: y"))
    response, data, end = (client.next_event() for _ in range(3))
    assert isinstance(response, h11.Response)
    assert isinstance(data, h11.Data)
    assert isinstance(end, h11.EndOfMessage)
    headers = dict(response.headers)
    assert response.status_code == status
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers.get(b"retry-after") == (b"1" if status is HTTPStatus.SERVICE_UNAVAILABLE else None)
    assert json.loads(bytes(data.data)) == {
        "type": "about:blank", "title": status.phrase, "status": status, "detail": "zu spät\r\nX: y"
    }  # fmt: skip
    assert client.their_state is h11.MUST_CLOSE
