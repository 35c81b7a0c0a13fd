"""No body within the limit of its route, and nothing that a job's code writes, keeps the master busy for long."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from tests.cpu_time import is_within
from tests.master.harness import make_settings

from rolecall.master.api.limits import NODE_BYTES, body_limit
from rolecall.master.catalogue import load
from rolecall.master.program import Program
from rolecall.master.server import create_app, keep_collections_short
from rolecall.master.streams import MAX_LINE_BYTES
from rolecall.spec.inspection import ANSWER_BYTES, Answer
from rolecall.spec.model import parse_untrusted
from rolecall.spec.report import ProgressLine
from rolecall.spec.timeline import WINDOW_BYTES, Window

MOST_CPU_S = 0.2
"""For each MiB."""
ENTRIES = ("{}", "[]", "null", "0", '""', '{"name":0}')
_Document = Callable[[str], str]
"""A function from the JSON of a list or an object to that of a document that contains it."""


def places(root: dict[str, Any], schema: dict[str, Any], depth: int = 6) -> Iterator[tuple[bool, _Document]]:
    """The lists (True) and the objects with any keys (False) in documents of a JSON schema."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from places(root, choice, depth)
    if depth == 0:
        return
    if schema.get("type") == "array":
        yield True, lambda many: many
        for is_list, inner in places(root, schema.get("items", {}), depth - 1):
            yield is_list, lambda many, inner=inner: f"[{inner(many)}]"
    if schema.get("type") == "object":
        if schema.get("additionalProperties") or "properties" not in schema:
            yield False, lambda many: many
        for name, field in schema.get("properties", {}).items():
            for is_list, inner in places(root, field, depth - 1):
                yield is_list, lambda many, name=name, inner=inner: f'{{"{name}":{inner(many)}}}'


def bodies(schema: dict[str, Any], size: int) -> Iterator[bytes]:
    for is_list, document in places(schema, schema):
        for entry in ENTRIES:
            for part in (1, 4, 16, 64):  # Some fields have limits for their entries.
                room = size // part - len(document("[]"))
                if is_list:
                    many = "[" + ",".join([entry] * (room // (len(entry) + 1))) + "]"
                else:
                    keys = range(room // (len(entry) + 11))
                    many = "{" + ",".join(f'"k{number}":{entry}' for number in keys) + "}"
                yield document(many).encode()


def _of_route(kind: Any) -> Callable[[bytes], object]:
    adapter = TypeAdapter(kind)

    def parse(body: bytes) -> object:
        try:
            return adapter.validate_python(json.loads(body))
        except ValidationError as error:
            return error.errors()

    return parse


def _of_worker(kind: type[BaseModel]) -> Callable[[bytes], object]:
    def parse(body: bytes) -> object:
        try:
            return parse_untrusted(kind, body)
        except ValueError as error:
            return str(error)

    return parse


def _parsed() -> Iterator[Any]:
    """Whatever others than nodes send as JSON: its parser, its schema and its size limit."""
    for kind, size in ((Answer, ANSWER_BYTES), (Window, WINDOW_BYTES), (ProgressLine, MAX_LINE_BYTES)):
        yield pytest.param(_of_worker(kind), kind.model_json_schema(), size, id=kind.__name__)
    routers: list[Any] = create_app(Program(make_settings(Path("/nowhere")), load())).routes
    routes: list[Any] = [route for router in routers for route in getattr(router, "original_router", router).routes]
    for route in routes:
        limit = body_limit(route.path) if getattr(route, "body_field", None) else None
        if limit not in {None, NODE_BYTES}:
            kind = route.body_field.field_info.annotation
            yield pytest.param(_of_route(kind), TypeAdapter(kind).json_schema(), limit, id=route.name)


@pytest.mark.slow
@pytest.mark.parametrize(("parse", "schema", "size"), [*_parsed()])
def test_no_json_takes_long(parse: Callable[[bytes], object], schema: dict[str, Any], size: int) -> None:
    keep_collections_short()
    for body in bodies(schema, size):
        assert len(body) <= size
        spent_s, limit_s = _spent_s(parse, body), MOST_CPU_S * size / (1 << 20)
        if spent_s >= limit_s:  # With other work on the machine, the same instructions sometimes take longer.
            assert is_within(min(_spent_s(parse, body) for _ in range(2)), limit_s), body[:100]


def _spent_s(parse: Callable[[bytes], object], body: bytes) -> float:
    begin = time.thread_time()
    parse(body)
    return time.thread_time() - begin
