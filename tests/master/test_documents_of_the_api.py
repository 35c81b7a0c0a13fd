"""The OpenAPI documents, and the examples in them."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rolecall.master import catalogue
from rolecall.master.api.openapi import of_nodes, of_users
from rolecall.master.catalogue import Catalogue
from rolecall.master.program import Program
from rolecall.master.server import create_app
from rolecall.spec.job import JobRequest

from .harness import NODE_TOKEN, Client, make_settings, serving

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed() -> Catalogue:
    """The workloads of this release."""
    return catalogue.load()


@pytest.fixture(scope="module")
def document(installed: Catalogue) -> dict[str, Any]:
    """The OpenAPI document of a master with these workloads."""
    return create_app(Program(make_settings(Path("/nowhere")), installed)).openapi()


def test_operations_have_names_and_describe_their_errors(document: dict[str, Any]) -> None:
    operations = [one for path in document["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(names) == len(set(names))
    assert all(re.fullmatch("[a-z]+(_[a-z]+)+", name) for name in names), names
    # `test_statuses.py` compares the statuses with what the routes answer.
    for method, operation in ((name, one) for path in document["paths"].values() for name, one in path.items()):
        errors = {status: one for status, one in operation["responses"].items() if int(status) >= 400}
        assert "500" in errors
        for error in errors.values():
            assert list(error.get("content", ())) == ["application/problem+json"] * (method != "head")
        if method == "head":
            assert not any("content" in one for one in operation["responses"].values())
    patch = document["paths"]["/jobs/{job}"]["patch"]["requestBody"]["content"]
    assert set(patch) == {"application/json", "application/merge-patch+json"}
    assert document["paths"]["/jobs"]["post"]["responses"]["200"]["content"]["application/json"]


def test_responses_declare_the_headers_that_they_always_have(document: dict[str, Any]) -> None:
    def declared(path: str, method: str = "get") -> dict[str, set[str]]:
        responses = document["paths"][path][method]["responses"]
        return {status: set(one["headers"]) for status, one in responses.items() if "headers" in one}

    errors = {"401": {"WWW-Authenticate"}, "429": {"Retry-After"}, "503": {"Retry-After"}}
    file = {"Accept-Ranges", "Content-Disposition", "ETag", "X-Content-SHA256"}
    assert declared("/nodes") == errors
    assert declared("/jobs", "post") == errors | {"201": {"Location"}, "507": {"Retry-After"}}
    download = {"200": file, "206": file | {"Content-Range"}, "304": file, "416": {"Content-Range"}}
    assert declared("/jobs/{job}/artifacts/{name}") == errors | download
    assert declared("/jobs/{job}/artifacts/{name}", "head") == errors | {"200": file | {"Content-Length"}, "304": file}
    assert declared("/jobs/{job}/checkpoints/{step}", "head") == errors | {"200": {"Content-Disposition", "ETag"}}


def test_parameters_have_descriptions_and_bodies_have_examples(document: dict[str, Any]) -> None:
    operations = [one for path in of_users(document)["paths"].values() for one in path.values()]
    parameters = [(one["operationId"], given) for one in operations for given in one.get("parameters", ())]
    assert [(name, given["name"]) for name, given in parameters if not given.get("description")] == []
    bodies = [one["requestBody"]["content"] for one in operations if "requestBody" in one]
    assert all(media["examples"] for content in bodies for media in content.values())


def test_calls_of_nodes_are_apart_and_no_schema_is_missing(document: dict[str, Any]) -> None:
    users, nodes = of_users(document), of_nodes(document)
    assert users["paths"].keys() | nodes["paths"].keys() == document["paths"].keys()
    assert not any(path.startswith("/internal/") for path in users["paths"])
    for part in (users, nodes):
        headers = set(re.findall(r'"#/components/headers/([^"]+)"', json.dumps(part)))
        assert headers == part["components"]["headers"].keys() != set()
        schemas = part["components"]["schemas"]
        used = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(part)))
        assert used == schemas.keys() - {"JobRequest"} | ({"JobRequest"} & used)
    assert "Heartbeat" not in users["components"]["schemas"]


def test_parameters_are_described_for_each_workload(document: dict[str, Any], installed: Catalogue) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["JobRequest"]["discriminator"]["mapping"].keys() == installed.workloads.keys()
    own = schemas["JobRequest.rnn-lm"]["properties"]
    assert own["workload"]["const"] == "rnn-lm"
    assert "bptt" in schemas[own["params"]["$ref"].rpartition("/")[2]]["properties"]


def test_each_workload_has_an_example_that_is_accepted(
    document: dict[str, Any], installed: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = document["paths"]["/jobs"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    assert examples.keys() == installed.workloads.keys()
    for name, example in examples.items():
        assert installed.check_request(JobRequest.model_validate(example["value"]))["workload"] == name
        file = ROOT / f"examples/{name}.json"
        if file.exists():
            assert json.loads(file.read_text()) == example["value"]


async def test_each_example_of_a_request_is_executed(
    document: dict[str, Any], installed: Catalogue, tmp_path: Path
) -> None:
    names = dict[str, str]()
    executed = Counter[str]()
    async with serving(make_settings(tmp_path), catalogue=installed) as client:
        # The shortest paths first: they create what the others change.
        for path in sorted(document["paths"], key=len):
            for method, operation in document["paths"][path].items():
                for media in operation.get("requestBody", {}).get("content", {}).values():
                    if operation["operationId"] == "start_profile":
                        continue  # It needs a running worker: `test_inspection.py` executes it.
                    for example in media.get("examples", {}).values():
                        sent = example["value"]
                        if path == "/jobs":
                            plan = await client.user(method, path, json=sent, params={"dry_run": True})
                            assert plan.status_code == 200, plan.text
                            assert "waiting for" in plan.json()["waiting_for"], "there are no nodes"
                        answer = await client.user(method, path.format(**names), json=sent)
                        assert answer.is_success, (path, answer.text)
                        if path == "/jobs":
                            names["job"] = answer.json()["id"]
                        elif path == "/tokens":
                            names["name"] = answer.json()["token"]["name"]
                        executed[operation["operationId"]] += 1
    others = ("change_job", "prune_jobs", "create_token", "change_token", "rotate_token")
    counts = {one: 2 if one in {"change_job", "change_token"} else 1 for one in others}  # of two media types
    assert executed == {"submit_job": len(installed.workloads), **counts}


async def test_each_part_is_served_to_its_readers(client: Client) -> None:
    users = (await client.user("GET", "/openapi.json")).json()
    assert "/jobs" in users["paths"]
    nodes = await client.call(NODE_TOKEN, "GET", "/internal/openapi.json")
    assert "/internal/nodes" in nodes.json()["paths"]
    assert not (await client.user("GET", "/internal/openapi.json")).is_success


def test_the_query_parameters_in_the_readme_exist(document: dict[str, Any]) -> None:
    known = {
        (method.upper(), re.sub("{.*?}", "{}", path)): {one["name"] for one in operation.get("parameters", ())}
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    rows = re.findall(r"^\| (`[A-Z]+ /.*?) \| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    for calls, description in rows:
        named = {(method, re.sub("{.*?}", "{}", path)) for method, path in re.findall(r"`([A-Z]+) (/[^`]*)`", calls)}
        valid = set[str]().union(*(known[call] for call in named & known.keys()))
        assert set(re.findall(r"\?(\w+)=", description)) <= valid, calls
    assert sum("?" in description for _, description in rows) > 5
