"""The problems of a request: a list of fields, each with the given value and the legal values. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

from rolecall.spec.redaction import redact_text

Schema = Mapping[str, Any]
Problem = dict[str, str]
MAX_PROBLEMS = 20
"""The maximum number of problems in one response."""
_READ_CHARS = 8192
"""The length to which a text is cut before redaction. No URL in a valid parameter is longer."""
_GIVEN_CHARS = 200
_FIELD_CHARS = 300
_MESSAGE_CHARS = 2000
# The time of the search for similar names grows with the product of both.
_NEAR_CHARS, _NEAR_NAMES = 80, 256
_LISTED_NAMES = 256
_KINDS = {"object": "an object", "array": "a list"}
_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "minLength": "of length ≥",
    "maxLength": "of length ≤",
    "minItems": "of length ≥",
    "maxItems": "of length ≤",
    "pattern": "like",
}


def problem(field: str, message: str, given: Any, legal: str) -> Problem:
    """One problem; long texts are cut."""
    return {
        "field": _cut(field, _FIELD_CHARS),
        "message": _cut(message, _MESSAGE_CHARS),
        "given": shown(given),
        "legal": legal,
    }


def unknown(field: str, kind: str, given: str, names: Iterable[str]) -> Problem:
    """The problem of an unknown name, with the most similar known one."""
    legal = sorted(map(str, names))
    near = get_close_matches(given, legal, n=1) if len(given) <= _NEAR_CHARS and len(legal) <= _NEAR_NAMES else []
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return problem(field, f"there is no {kind} '{_cut(given, _GIVEN_CHARS)}'{hint}", given, _listed(legal))


def explain(errors: Sequence[Mapping[str, Any]], schema: Schema, prefix: tuple[str, ...] = ()) -> list[Problem]:
    """The problems for pydantic's `errors` about a value with the JSON schema `schema`; `prefix` precedes field names.

    Explains the first `MAX_PROBLEMS`; a last entry counts the others.
    """
    return shortened([_explain_one(error, schema, prefix) for error in errors[:MAX_PROBLEMS]], len(errors))


def shortened(problems: Sequence[Problem], count: int) -> list[Problem]:
    """The first `MAX_PROBLEMS` of `count` problems, and an entry that counts the others."""
    listed = list(problems[:MAX_PROBLEMS])
    if count > len(listed):
        more = f"{count - len(listed)} more problems are not listed; fix these first"
        listed.append({"field": "…", "message": more, "given": "", "legal": ""})
    return listed


def shown(given: Any) -> str:
    """The value as short JSON without credentials of URLs. Reads only the beginning of a large value."""
    text = ""
    for chunk in json.JSONEncoder(default=str).iterencode(given):
        text += chunk  # A string is one chunk, so no URL is cut.
        if len(text) > _GIVEN_CHARS:
            break
    return _cut(text, _GIVEN_CHARS)


def _cut(text: str, max_chars: int) -> str:
    """The beginning of a text. Redacts first, because credentials can't be recognized in a URL that is cut."""
    shown = redact_text(text[:_READ_CHARS])
    return shown if len(shown) <= max_chars else f"{shown[:max_chars]}…"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED_NAMES} more" if len(names) > _LISTED_NAMES else ""
    return (", ".join(names[:_LISTED_NAMES]) or "none") + more


def _explain_one(error: Mapping[str, Any], schema: Schema, prefix: tuple[str, ...]) -> Problem:
    path = tuple(error["loc"])
    field = ".".join(str(part) for part in (*prefix, *path)) or "body"
    if error["type"] == "extra_forbidden":
        owners = _choices(schema, at(schema, path[:-1]))
        names = {name for owner in owners for name in owner.get("properties", ())}
        return unknown(field, "field", str(path[-1]), names)
    if path and path[-1] == "[key]":
        names = _resolved(schema, at(schema, path[:-2]).get("propertyNames", {})).get("enum", ())
        return unknown(field.removesuffix(".[key]"), "name", str(path[-2]), names)
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "missing":
        return problem(field, "it is missing", None, legal(schema, at(schema, path)))
    return problem(field, message, error.get("input"), legal(schema, at(schema, path)))


def at(schema: Schema, path: Iterable[str | int]) -> Schema:
    """The part of `schema` that describes the value at `path`; empty if there is none."""
    here = _resolved(schema, schema)
    for part in path:
        here = _resolved(schema, _child(schema, here, part))
    return here


def legal(root: Schema, schema: Schema) -> str:
    """A short description of the values that `schema` allows; empty if it has no constraints."""
    schema = _resolved(root, schema)
    if "const" in schema:
        return shown(schema["const"])
    if "enum" in schema:
        return ", ".join(str(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(legal(root, choice) for choice in schema["anyOf"])
    if "properties" in schema:
        return "an object with " + ", ".join(schema["properties"])
    kind = str(schema.get("type", ""))
    bounds = [f"{word} {schema[key]}" for key, word in _BOUNDS.items() if key in schema]
    return " ".join([_KINDS.get(kind, kind), *bounds]).strip()


def _child(root: Schema, schema: Schema, part: str | int) -> Schema:
    for choice in _choices(root, schema):
        if part in choice.get("properties", {}):
            return choice["properties"][part]
        if isinstance(part, int) and "items" in choice:
            return choice["items"]
        if isinstance(choice.get("additionalProperties"), dict):
            return choice["additionalProperties"]
    return {}


def _choices(root: Schema, schema: Schema) -> list[Schema]:
    """The schema and its alternatives."""
    return [schema, *(_resolved(root, choice) for choice in schema.get("anyOf", schema.get("oneOf", ())))]


def _resolved(root: Schema, schema: Schema) -> Schema:
    while "$ref" in schema:
        schema = cast(Schema, root["$defs"][schema["$ref"].rpartition("/")[2]])
    return schema
