"""Bodies of `POST /jobs` that are made to harm: each gets a problem document, soon, and the master goes on."""

import json
from pathlib import Path

import psutil
import pytest
from tests.master.harness import make_settings, serving

DEEP = 100_000
PARAMS = '{"workload": "toy", "params": %s}'
BODIES: dict[str, tuple[str, int, str]] = {
    "lists nested deeply": (PARAMS % ('{"a": ' + "[" * DEEP + "]" * DEEP + "}"), 400, "nested"),
    "objects nested deeply": (PARAMS % ('{"a": ' * DEEP + "1" + "}" * DEEP), 400, "nested"),
    "lists nested as deep as Python reads": (PARAMS % ('{"a": ' + "[" * 500 + "]" * 500 + "}"), 422, "nested"),
    "an odd field nested deeply": ('{"workload": "toy", "priority": ' + "[" * 500 + "]" * 500 + "}", 422, "priority"),
    "an integer of many digits": (PARAMS % ('{"steps": 1' + "0" * 100_000 + "}"), 400, "integer"),
    "an integer beyond 64 bits": (PARAMS % ('{"steps": 1' + "0" * 4000 + "}"), 422, "64 bits"),
    "many workers": ('{"workload": "toy", "roles": {"trainer": 1' + "0" * 4000 + "}}", 422, "roles.trainer"),
    "NaN": (PARAMS % '{"learning_rate": NaN}', 422, "not finite"),
    "infinity": (PARAMS % '{"learning_rate": 1e999}', 422, "not finite"),
    "a deadline that is no number": ('{"workload": "toy", "deadline_s": NaN}', 422, "deadline_s"),
    "half a surrogate pair": (PARAMS % '{"steps": "\\ud800"}', 422, "surrogate"),
    "half a surrogate pair in a name": ('{"workload": "toy", "name": "\\udfff"}', 422, "name"),
    "many unknown fields": (json.dumps({f"k{i}": 1 for i in range(70_000)}), 422, "70000 fields"),
    "many unknown parameters": (PARAMS % json.dumps({f"k{i}": 1 for i in range(70_000)}), 422, "70000 entries"),
    "some unknown parameters": (PARAMS % json.dumps({f"k{i}": 1 for i in range(900)}), 422, "880 more problems"),
    "many roles": (
        '{"workload": "toy", "roles": ' + json.dumps({f"k{i}": 1 for i in range(70_000)}) + "}",
        422,
        "roles",
    ),
    "a workload's long name": (json.dumps({"workload": "t" * 1_000_000}), 422, "workload"),
    "a long list for an object": ("[" + "1," * 400_000 + "1]", 422, "body"),
    "a long text for an object": (json.dumps("x" * 1_000_000), 422, "body"),
    "no UTF-8": ('{"workload": "\xff\xfe"}', 400, "not UTF-8"),
}


async def test_bodies_that_harm_are_refused_at_once(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        process = psutil.Process()
        for name, (body, status, said) in BODIES.items():
            begin = sum(process.cpu_times()[:2])
            response = await client.user("POST", "/jobs", content=body.encode("latin-1"))
            spent_s = sum(process.cpu_times()[:2]) - begin
            assert response.status_code == status, (name, response.text[:500])
            assert response.headers["content-type"] == "application/problem+json", name
            assert said in response.json()["detail"], (name, response.text[:500])
            assert len(response.content) < 100_000, name
            assert spent_s < 0.5, (name, spent_s)


@pytest.mark.parametrize("body", [b'{"workload": "no", "workload": "toy", "params": {"steps": 0, "steps": 7}}'])
async def test_of_a_field_that_is_given_twice_the_last_counts(tmp_path: Path, body: bytes) -> None:
    async with serving(make_settings(tmp_path)) as client:
        response = await client.user("POST", "/jobs", content=body)
        assert response.status_code == 201, response.text
        assert response.json()["params"]["steps"] == 7
