"""The check of a call by its path and header, and its entry in the audit log. `test_access` tests the routes."""

import base64
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from rolecall.master.access import Principal
from rolecall.master.api.auth import Admission, action_of, address_of, admission, refusal, target_of
from rolecall.master.program import Master
from rolecall.spec.access import Scope
from rolecall.spec.token import attempt_token

KEY = "k" * 64
USER, NODE = Principal("user", frozenset({Scope.SUBMIT})), Principal("node", frozenset({Scope.NODE}))
MASTER = cast(
    Master,
    SimpleNamespace(
        access=SimpleNamespace(principal={"user-token": USER, "node-token": NODE}.get),
        sessions=SimpleNamespace(principal={"session": USER}.get),
        signing_key=KEY,
    ),
)
NONE, FORBIDDEN, ACCEPTED = "no valid token", "a token without a scope for the path", "a token that opens it"


def checked(path: str, authorization: str = "", session: str = "") -> Admission:
    return admission(MASTER, path, authorization, session)


def status(found: Admission) -> str:
    if found.is_granted:
        return ACCEPTED
    return NONE if found.caller is None else FORBIDDEN


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("path", "authorization", "session", "expected"),
    [
        ("/jobs", "Bearer user-token", "", ACCEPTED),
        ("/jobs", "bearer  user-token ", "", ACCEPTED),
        ("/jobs", "Bearer node-token", "", FORBIDDEN),
        ("/internal/nodes/n", "Bearer user-token", "", FORBIDDEN),
        ("/internal/nodes/n", "Bearer node-token", "", ACCEPTED),
        ("/internal/nodes/n", "", "session", NONE),
        ("/jobs", "", "session", ACCEPTED),
        ("/jobs", "Bearer wrong", "session", NONE),  # A session doesn't stand in for a wrong token.
        ("/docs", basic("me:user-token"), "", ACCEPTED),
        ("/docs/start.js", basic(":user-token"), "", ACCEPTED),
        ("/jobs", basic("me:user-token"), "", NONE),
        ("/docs-of-mine", basic("me:user-token"), "", NONE),
        ("/internal/nodes/n", basic("me:node-token"), "", NONE),
    ],
)
def test_a_token_opens_its_part_of_the_api(path: str, authorization: str, session: str, expected: str) -> None:
    assert status(checked(path, authorization, session)) == expected


@pytest.mark.parametrize(
    ("path", "job"),
    [
        ("/internal/jobs/a/attempts/2/checkpoints", "a"),
        ("/internal/jobs/a/blobs/1/part", "a"),
        ("/internal/jobs/a/attempts/1/checkpoints", ""),
        ("/internal/jobs/b/attempts/2/checkpoints", ""),
        ("/internal/jobs/a/attempts/99999999999/checkpoints", ""),
        ("/internal/jobs/a/attempts/2", ""),
        ("/internal/nodes/n", ""),
    ],
)
def test_the_token_of_an_attempt_opens_what_belongs_to_the_attempt(path: str, job: str) -> None:
    found = checked(path, f"Bearer {attempt_token(KEY, 'a', 2)}")
    assert found.job == job
    assert found.is_granted == bool(job)
    assert found.caller is None


@given(
    st.sampled_from(["/jobs", "/docs", "/internal/jobs/a/attempts/1/x"]),
    st.sampled_from(["", "Bearer", "basic", "Digest"]),
    st.text(st.characters(codec="latin-1")) | st.binary().map(lambda raw: base64.b64encode(raw).decode()),
)
def test_any_other_header_is_no_token(path: str, scheme: str, rest: str) -> None:
    assert status(checked(path, f"{scheme} {rest}")) == NONE


def call(app: FastAPI, path: str, **values: Any) -> dict[str, Any]:
    return {"type": "http", "app": app, "method": "GET", "path": path, **values}


def test_a_refused_call_is_recorded_without_what_its_client_can_choose() -> None:
    app = FastAPI()

    @app.get("/jobs/{job}/logs")
    async def logs(job: str) -> str:
        return job

    assert action_of(call(app, "/jobs/toy-1/logs")) == "GET /jobs/{job}/logs"
    assert action_of(call(app, "/jobs/toy-1/anything")) == "GET no route"
    known = call(app, "/jobs/toy-1/logs", path_params={"job": "toy\n-1" + "x" * 1000}, client=("10.0.0.7" * 20, 1))
    assert "\n" not in target_of(known)
    assert len(target_of(known)) <= 400
    assert len(address_of(known)) <= 80
    assert refusal(known, None, 401).target == "", "a client without a token could choose many"
    assert refusal(known, "user", 403).target == target_of(known)
    assert address_of(call(app, "/")) == "unknown"
