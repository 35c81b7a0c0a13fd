"""No parameters, however they are made, cost the master more than a moment."""

import gc
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cpu_time import is_within

from rolecall.kit.params import MAX_RPC_THREADS
from rolecall.master.api.error_handlers import add_problem_handlers
from rolecall.master.catalogue import load, schema_of
from rolecall.master.server import keep_collections_short
from rolecall.spec.job import JobRequest
from rolecall.spec.role import Role
from rolecall.workloads.resnet_pipeline.params import MAX_MICRO_BATCHES

from .documents import BYTES, MINIMAL, SAME_EACH_TIME, WORST, documents

MOST_CPU_S = 0.2
"""CPU time of a request."""
CATALOGUE = load()
# Each schema is made once in a master's life, so no measured request makes it.
DOCUMENTS = {name: documents(schema_of(workload.params)) for name, workload in CATALOGUE.workloads.items()}
ROLES = st.dictionaries(st.sampled_from(list(Role)), st.sampled_from([-1, 0, 1, 2, 7, 256, 10**6]), max_size=3)
APP = FastAPI()
add_problem_handlers(APP)


@APP.post("/jobs")
async def _check_request(request: JobRequest) -> None:
    """The master's work on a request before it reads its database. The check has a thread of its own there."""
    CATALOGUE.check_request(request)


@pytest.fixture(autouse=True, scope="module")
def _collections_as_in_a_master() -> Iterator[None]:
    thresholds = gc.get_threshold()
    keep_collections_short()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def body_of(workload: str, params: Any, roles: dict[Role, int]) -> bytes:
    """The JSON of a request."""
    return json.dumps({"workload": workload, "params": params, "roles": roles}, separators=(",", ":")).encode()


async def checked(body: bytes) -> list[dict[str, str]]:
    """The field errors of a request, found in time and described in few words."""
    assert len(body) <= BYTES, "the master refuses larger bodies before it reads them"
    spent_s, response = await _post(body)
    if spent_s >= MOST_CPU_S:  # Next to other work the same instructions take longer, now and then.
        spent_s = min([(await _post(body))[0] for _ in range(3)])
        assert is_within(spent_s, MOST_CPU_S), f"{spent_s:.3f} s of CPU"
    assert response.status_code in (200, 422), response.text[:2000]
    assert len(response.content) < 200_000
    return response.json()["errors"] if response.status_code == 422 else []


async def _post(body: bytes) -> tuple[float, httpx.Response]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(APP), base_url="http://master") as client:
        begin = time.thread_time()
        response = await client.post("/jobs", content=body, headers={"Content-Type": "application/json"})
        return time.thread_time() - begin, response


@pytest.mark.slow
@pytest.mark.parametrize("workload", sorted(CATALOGUE.workloads))
@settings(SAME_EACH_TIME, max_examples=25)
@given(data=st.data())
async def test_no_document_takes_long(workload: str, data: st.DataObject) -> None:
    params = data.draw(DOCUMENTS[workload])
    roles = data.draw(ROLES)
    if len(body := body_of(workload, params, roles)) <= BYTES:
        await checked(body)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(WORST)))
async def test_the_worst_documents_are_checked_at_once(number: int) -> None:
    workload, params = WORST[number]
    field_errors = await checked(body_of(workload, MINIMAL[workload] | params, {}))
    assert all(field_error["message"] for field_error in field_errors)
    assert len(field_errors) <= 21


async def test_a_number_that_does_not_divide_is_answered_with_its_neighbors() -> None:
    params = MINIMAL["transformer-pipeline"] | {"batch_size": 99_999_999}
    (field_error,) = await checked(body_of("transformer-pipeline", params, {}))
    assert field_error["message"].endswith(
        "micro_batches 4 does not divide the 99999999 sequences of each replica; nearest valid: 3 or 9"
    )


def test_the_bounds_are_part_of_the_schema() -> None:
    for workload in CATALOGUE.workloads.values():
        schema = schema_of(workload.params)
        assert _unbounded(schema, schema, workload.name) == []


async def test_the_workers_of_a_node_leave_threads_to_others() -> None:
    for spare in (MAX_RPC_THREADS, MAX_MICRO_BATCHES + 2):  # what a job may ask for, and what it may need
        assert 16 * spare < 32_768 / 2, "of a machine's usual limit, with 16 workers"
    params = MINIMAL["resnet-pipeline"] | {"rpc": {"threads": 4096}}
    (field_error,) = await checked(body_of("resnet-pipeline", params, {}))
    assert field_error["field"] == "params.rpc.threads"


def _unbounded(root: Any, schema: Any, path: str) -> list[str]:
    """The numbers, texts and lists of a schema without an upper bound; `Any` values have the document's bounds."""
    found: list[str] = []
    bounds = {
        "integer": ("maximum", "exclusiveMaximum"),
        "number": ("maximum", "exclusiveMaximum"),
        "string": ("maxLength", "enum", "const"),
        "array": ("maxItems",),
    }
    if schema.get("type") in bounds and not any(key in schema for key in bounds[schema["type"]]):
        found.append(path)
    parts = {**schema.get("$defs", {}), **schema.get("properties", {})}
    parts |= {str(number): one for number, one in enumerate([*schema.get("anyOf", ()), *schema.get("oneOf", ())])}
    if "items" in schema:
        parts["[]"] = schema["items"]
    return found + [place for name, one in parts.items() for place in _unbounded(root, one, f"{path}.{name}")]
