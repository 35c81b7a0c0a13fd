"""The OpenAPI documents: of the users' API, and of the calls of nodes and workers. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from pydantic.json_schema import models_json_schema

from rolecall.master.api import headers
from rolecall.master.api.error_handlers import SCHEMA, documented
from rolecall.master.catalogue import Catalogue

Document = dict[str, Any]
_INTERNAL = "/internal/"
_COMPONENTS = "#/components/schemas/"
_ACCEPTS_UNKNOWN_NAMES = frozenset({"put_answer", "remove_node"})
"""Calls that do nothing for a job or node that doesn't exist."""
_ACCEPTS_ALL = frozenset({"show_cluster_info"})
"""Calls of nodes without a parameter that is checked."""
_STORES_NOTHING = frozenset({"put_answer", "show_stacks", "start_profile"})
_OF_TOKENS = frozenset({"401", "403", "429", "503"})
"""Errors of calls that need a token: only they wait for a place among its connections, and for the master to lead."""
EXAMPLES: dict[str, Document] = {
    "change_job": {"priority": 5, "labels": {"team": "ads"}},
    "prune_jobs": {"ended_before": "2026-01-01T00:00:00Z", "dry_run": True},
    "create_token": {"name": "alice", "scopes": ["submit"], "max_queued": 20, "max_slots": 8},
    "change_token": {"max_slots": 16},
    "rotate_token": {"overlap_s": 3600},
    "start_profile": {"role": "trainer", "steps": 20},
}
"""Examples of bodies, by the name of the call."""
_PARAMS = "Params."
"""The prefix of the schemas of workloads' parameters, so that they differ from those of the API."""


def complete(document: Document, catalogue: Catalogue) -> Document:
    """The framework's document with what it doesn't know: problem documents, and the parameters of each workload."""
    components = document["components"]["schemas"]
    components["Problem"] = SCHEMA
    document["components"]["headers"] = headers.HEADERS
    for path, item in document["paths"].items():
        for method, operation in item.items():
            operation["responses"] = _responses(path, method, operation)
            if (example := EXAMPLES.get(operation["operationId"])) is not None:
                for media in operation["requestBody"]["content"].values():
                    media["examples"] = {"example": {"value": example}}
    if catalogue.workloads:
        _describe_requests(components, catalogue)
    body = document["paths"]["/jobs"]["post"]["requestBody"]["content"]["application/json"]
    body["examples"] = {
        name: {"value": example} for name in sorted(catalogue.workloads) if (example := catalogue.example(name))
    }
    return document


def of_users(document: Document) -> Document:
    """The part of the document that users need."""
    return _part(document, lambda path: not path.startswith(_INTERNAL))


def of_nodes(document: Document) -> Document:
    """The part about the calls of nodes and workers, which can change with each release."""
    return _part(document, lambda path: path.startswith(_INTERNAL))


def _responses(path: str, method: str, operation: Document) -> Document:
    """The declared responses with the errors that depend on the form of a call, and without those it can't have."""
    name, has_body = operation["operationId"], "requestBody" in operation
    possible = {
        404: "{" in path and name not in _ACCEPTS_UNKNOWN_NAMES,
        400: has_body,
        413: has_body,
        507: method not in {"get", "head"} and name not in _STORES_NOTHING,
    }
    found: Document = operation["responses"] | documented(*(status for status, is_so in possible.items() if is_so))
    impossible = set[str]() if "security" in operation else {*_OF_TOKENS}
    if name in _ACCEPTS_ALL:
        impossible.add("422")
    texts = {str(status): one for status, one in found.items()}
    left_out = {"content"} if method == "head" else set[str]()
    return {
        status: {name: part for name, part in texts[status].items() if name not in left_out}
        for status in sorted(texts.keys() - impossible)
    }


def _describe_requests(components: Document, catalogue: Catalogue) -> None:
    """Replace `JobRequest` by one schema for each workload, which its name selects."""
    request = components["JobRequest"]
    names = sorted(catalogue.workloads)
    kinds = {name: catalogue.workloads[name].params for name in names}
    template = f"{_COMPONENTS}{_PARAMS}{{model}}"
    own, definitions = models_json_schema(
        [(kind, "validation") for kind in dict.fromkeys(kinds.values())], ref_template=template
    )
    components |= {f"{_PARAMS}{name}": one for name, one in definitions.get("$defs", {}).items()}
    references = {kind: reference for (kind, _), reference in own.items()}
    properties = request["properties"]
    for name in names:
        workload = {"const": name, "type": "string", "description": catalogue.workloads[name].summary}
        params = {"description": properties["params"].get("description", ""), **references[kinds[name]]}
        fields = {"properties": {**properties, "workload": workload, "params": params}}
        components[f"JobRequest.{name}"] = request | fields | {"title": f"JobRequest.{name}"}
    mapping = {name: f"{_COMPONENTS}JobRequest.{name}" for name in names}
    components["JobRequest"] = {
        "title": "JobRequest",
        "description": request.get("description", ""),
        "oneOf": [{"$ref": reference} for reference in mapping.values()],
        "discriminator": {"propertyName": "workload", "mapping": mapping},
    }


def _part(document: Document, belongs: Callable[[str], bool]) -> Document:
    """The document with the paths that belong to a part, and the schemas and headers that they use."""
    paths = {path: item for path, item in document["paths"].items() if belongs(path)}
    schemas: Mapping[str, Any] = document["components"]["schemas"]
    used, waiting = set[str](), set(_references(paths, _COMPONENTS))
    while waiting:
        name = waiting.pop()
        used.add(name)
        waiting |= set(_references(schemas[name], _COMPONENTS)) - used
    sent = set(_references(paths, headers.COMPONENTS))
    components = document["components"] | {
        "schemas": {name: one for name, one in schemas.items() if name in used},
        "headers": {name: one for name, one in document["components"]["headers"].items() if name in sent},
    }
    return document | {"paths": paths, "components": components}


def _references(value: Any, kind: str) -> Iterator[str]:
    """The names of the components of a kind, such as schemas, to which a part of a document refers."""
    if isinstance(value, dict):
        for key, one in cast(dict[str, Any], value).items():
            if key == "$ref" and isinstance(one, str):
                yield from [one.removeprefix(kind)] if one.startswith(kind) else ()
            else:
                yield from _references(one, kind)
    elif isinstance(value, list):
        for one in cast(list[Any], value):
            yield from _references(one, kind)
