"""The field errors of a request: a list of fields, each with the given value and the valid values. Pure."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast

from rolecall.spec.bounds import RULE
from rolecall.spec.redaction import redact_text
from rolecall.spec.similar import most_similar
from rolecall.spec.visible import listed

Schema = Mapping[str, Any]
FieldError = dict[str, str]
Path = tuple[str | int, ...]
MAX_FIELD_ERRORS = 20
"""The maximum number of field errors in one response."""
_READ_ERRORS = 1000
_WRONG_KIND = "wrong_kind"
_NO_CHOICE = {"enum", "literal_error", _WRONG_KIND}
_DEEPER = {"union_tag_invalid", "union_tag_not_found", "extra_forbidden"}
"""Errors of an object's entry that pydantic reports at the object."""
_READ_CHARS = 8192
"""The length to which a text is cut before redaction. No URL in a valid parameter is longer."""
_GIVEN_CHARS = 200
_FIELD_CHARS = 300
_MESSAGE_CHARS = 2000
# The time of the search for similar names grows with the product of both.
_NEAR_CHARS, _NEAR_NAMES = 80, 256
_LISTED_NAMES = 256
_SUBJECT = re.compile("^(Input|String|Bytes|List|Tuple|Set|Dictionary|Value) should")
_NAMED = re.compile(r"[a-z]\w*(?:\.[a-z]\w*)*")
_OWN = "Value error, "
"""Before the messages of our own validators, and those of workloads."""
_OF_JOB = "; the workload's parameters belong in 'params'"
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


def field_error(field: str, message: str, given: Any, legal: str) -> FieldError:
    """One field error; long texts are cut."""
    return {
        "field": _cut(field, _FIELD_CHARS),
        "message": _cut(message, _MESSAGE_CHARS),
        "given": shown(given),
        "legal": legal,
    }


def unknown(field: str, kind: str, given: str, names: Iterable[str], advice: str = "") -> FieldError:
    """The error of an unknown name, with the most similar known one, or else with `advice`."""
    legal = sorted(map(str, names))
    message = f"there is no {kind} '{_cut(given, _GIVEN_CHARS)}'{_hint(given, legal) or advice}"
    return field_error(field, message, given, listed(legal, _LISTED_NAMES) or "none")


def _hint(given: str, legal: Collection[str]) -> str:
    near = most_similar(given, legal) if len(given) <= _NEAR_CHARS and len(legal) <= _NEAR_NAMES else None
    return f"; did you mean '{near}'?" if near else ""


def explain(errors: Sequence[Mapping[str, Any]], schema: Schema, prefix: tuple[str, ...] = ()) -> list[FieldError]:
    """The field errors for pydantic's `errors` about a value with the JSON schema `schema`; `prefix` precedes names.

    Explains the first `MAX_FIELD_ERRORS`; a last entry counts the others.
    """
    chosen = meant(errors, schema)
    return shortened([_explain_one(error, schema, prefix) for error in chosen[:MAX_FIELD_ERRORS]], len(chosen))


def shortened(errors: Sequence[FieldError], count: int) -> list[FieldError]:
    """The first `MAX_FIELD_ERRORS` of `count` errors, and an entry that counts the others."""
    first = list(errors[:MAX_FIELD_ERRORS])
    if count > len(first):
        more = f"{count - len(first)} more problems are not listed; fix these first"
        first.append({"field": "…", "message": more, "given": "", "legal": ""})
    return first


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


def _explain_one(error: Mapping[str, Any], schema: Schema, prefix: tuple[str, ...]) -> FieldError:
    place = locate(schema, error["loc"])
    path = (*prefix, *map(str, place.path))
    field = ".".join(path) or "body"
    if error["type"] == "extra_forbidden":
        inner = locate(schema, error["loc"][:-1])
        names = {name for choice in _choices(schema, inner.schema) for name in choice.get("properties", ())}
        name = str(error["loc"][-1])
        is_of_job = len(error["loc"]) == 1 and "params" in names
        return unknown(".".join((*prefix, *map(str, inner.path), name)), "field", name, names, _OF_JOB * is_of_job)
    if error["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        return _explain_tag(error, schema, place.schema, path)
    if error["loc"] and error["loc"][-1] == "[key]":
        return _explain_key(error, schema, prefix)
    if rule := _broken_rule(error, schema, place.schema):
        return field_error(field, f"it must be {rule}", error.get("input"), "")
    message = _worded(str(error["msg"]))
    if error["type"] == "missing":
        return field_error(field, "it is missing", None, legal(schema, place.schema))
    names = [str(one) for choice in _choices(schema, place.schema) for one in _members(choice)]
    if names and isinstance(given := error.get("input"), str) and error["type"] in _NO_CHOICE:
        message = f"'{_cut(given, _GIVEN_CHARS)}' is not a valid value{_hint(given, names)}"
    elif error["type"] == _WRONG_KIND:
        message = "it has the wrong type"
    inner = _first_named(message, schema, place.schema) if _is_of_fields(error) else []
    valid = "" if _is_of_fields(error) else legal(schema, place.schema)
    return field_error(".".join((*path, *inner)) or "body", message, _value_at(error.get("input"), inner), valid)


def _worded(message: str) -> str:
    """A message about a value. Those of pydantic are put in the words of the other messages."""
    if message.startswith(_OWN):
        return message.removeprefix(_OWN)
    message = message.partition(", unable to parse")[0].replace(" after validation", "")
    return _SUBJECT.sub("it must", message).replace("a valid integer", "an integer").replace("a valid ", "a ")


def _broken_rule(error: Mapping[str, Any], root: Schema, schema: Schema) -> str:
    """The rule in words of the pattern that a value does not match; empty if there is none, or for other errors."""
    if (pattern := error.get("ctx", {}).get("pattern")) is None:
        return ""
    rules = (one[RULE] for one in _choices(root, schema) if RULE in one and one.get("pattern") == pattern)
    return next(rules, "")


def _is_of_fields(error: Mapping[str, Any]) -> bool:
    """True for a rule about several fields of an object, which says itself what is valid."""
    return error["type"] == "value_error" and isinstance(error.get("input"), Mapping)


def _first_named(message: str, root: Schema, schema: Schema) -> list[str]:
    """The path of the field with which a message about several fields begins, such as `loss: mse does not fit …`."""
    found = _NAMED.match(message)
    names, here = found[0].split(".") if found else [], schema
    # An object with names of the user's choice would have a field of every name, such as the "it" of many messages.
    if names and not any(names[0] in choice.get("properties", {}) for choice in _choices(root, schema)):
        return []
    for name in names:
        inner = _child(root, here, name)
        if inner is None:
            return []
        here = _resolved(root, inner)
    return names


def _value_at(given: Any, path: Sequence[str]) -> Any:
    """The value of a field that may be missing."""
    for name in path:
        given = cast(Mapping[str, Any], given).get(name) if isinstance(given, Mapping) else None
    return given


def _explain_tag(error: Mapping[str, Any], root: Schema, schema: Schema, path: tuple[str, ...]) -> FieldError:
    """The error of a union whose field that names the alternative is missing or unknown."""
    context: Mapping[str, Any] = error["ctx"]
    known = cast(Mapping[str, str], schema.get("discriminator", {}))
    name = known.get("propertyName") or str(context["discriminator"]).strip("'")
    choices = (choice.get("properties", {}) for choice in _choices(root, schema))
    names = [str(tag) for fields in choices if name in fields for tag in _members(_resolved(root, fields[name]))]
    tags = list(dict.fromkeys(names)) or str(context.get("expected_tags", "")).replace("'", "").split(", ")
    field = ".".join((*path, name))
    if error["type"] == "union_tag_not_found":
        return field_error(field, "it is missing", None, listed(sorted(tags), _LISTED_NAMES) or "none")
    return unknown(field, name, str(error["ctx"]["tag"]), tags)


def _explain_key(error: Mapping[str, Any], schema: Schema, prefix: tuple[str, ...]) -> FieldError:
    """The error of a key of an object with keys of a kind."""
    owner = locate(schema, error["loc"][:-2])
    key = str(error["loc"][-2])
    field = ".".join((*prefix, *map(str, owner.path), key))
    choices = _choices(schema, owner.schema)
    rules: list[Schema] = [choice["propertyNames"] for choice in choices if "propertyNames" in choice]
    patterns = (name for choice in choices for name in cast(Schema, choice.get("patternProperties", {})))
    rules += [{"type": "string", "pattern": pattern} for pattern in patterns]
    rule = {name: value for one in rules for name, value in _resolved(schema, one).items()}
    if "enum" in rule:
        return unknown(field, str(rule.get("title", "name")).lower(), key, rule["enum"])
    if words := _broken_rule(error, schema, rule):
        return field_error(field, f"it must be {words}", key, "")
    return field_error(field, _worded(str(error["msg"])), key, legal(schema, rule))


def meant(errors: Sequence[Mapping[str, Any]], schema: Schema) -> list[Mapping[str, Any]]:
    """The errors without those of alternatives that the user did not mean, and without wrong counts of items.

    For a union, pydantic lists the errors of every alternative. If some accept the kind of the value, such as an
    object, only their errors count. Otherwise one error represents all alternatives.
    """
    owners = {tuple(error["loc"][:length]) for error in errors for length in range(len(error["loc"]))}
    errors = [error for error in errors if not (tuple(error["loc"]) in owners and _miscounts(error))]
    # The place of an unknown field is that of its object.
    places = [
        locate(schema, error["loc"][:-1] if error["type"] == "extra_forbidden" else error["loc"])
        for error in errors[:_READ_ERRORS]
    ]
    unions: dict[Path, dict[str | int, list[bool]]] = {}
    for error, place in zip(errors, places, strict=False):
        for depth, label in place.alternatives:
            is_other_kind = len(place.path) == depth and not (error["type"] in _DEEPER or _is_of_fields(error))
            unions.setdefault(place.path[:depth], {}).setdefault(label, []).append(is_other_kind)
    fitting = {at: {one for one, others in union.items() if not any(others)} for at, union in unions.items()}
    kept, merged = list[Mapping[str, Any]](), set[Path]()
    for error, place in zip(errors, places, strict=False):
        chosen = [(place.path[:depth], label) for depth, label in place.alternatives]
        wrong = next((at for at, label in chosen if label not in fitting[at] and len(unions[at]) > 1), None)
        if wrong is None:
            kept.append(error)
        elif not fitting[wrong] and wrong not in merged:
            merged.add(wrong)
            kept.append({**error, "loc": _loc_of(schema, error["loc"], wrong), "type": _WRONG_KIND})
    return [*kept, *errors[_READ_ERRORS:]]


def _miscounts(error: Mapping[str, Any]) -> bool:
    """True for a list that is long enough, but has too few valid items: pydantic counts only those."""
    given = error.get("input")
    return error["type"] == "too_short" and isinstance(given, Sized) and len(given) >= error["ctx"]["min_length"]


def _loc_of(schema: Schema, loc: Sequence[str | int], path: Path) -> Sequence[str | int]:
    """The beginning of an error's `loc` that leads to `path`."""
    return next(loc[:end] for end in range(len(loc) + 1) if locate(schema, loc[:end]).path == path)


@dataclass(frozen=True, slots=True)
class ErrorPlace:
    """The place of an error: its path in the value, without the names that pydantic gives to a union's alternatives."""

    path: Path
    schema: Schema
    alternatives: tuple[tuple[int, str | int], ...]
    """The alternatives of undiscriminated unions on the way: the length of the path there, and the name."""


def locate(root: Schema, loc: Iterable[str | int]) -> ErrorPlace:
    """The place of an error in a value with the schema `root`."""
    here: Schema = _resolved(root, root)
    path, alternatives = list[str | int](), list[tuple[int, str | int]]()
    for part in loc:
        # The values of the field that selects an alternative of a union, each with its schema.
        tags = cast(Mapping[str, Mapping[str, str]], here.get("discriminator", {})).get("mapping", {})
        if part in tags:
            here = _resolved(root, {"$ref": tags[str(part)]})
            continue
        inner = _child(root, here, part)
        if inner is not None:
            here = _resolved(root, inner)
            path.append(part)
        elif "anyOf" in here or "oneOf" in here:
            title = str(part).rstrip("]").rpartition(", ")[2]  # With a validator: function-after[check(), Title].
            named = (one for one in _choices(root, here)[1:] if one.get("title") == title)
            alternatives.append((len(path), part))
            here = next(named, here)
        elif here or not alternatives:
            path.append(part)
            here = {}
    return ErrorPlace(tuple(path), here, tuple(alternatives))


def legal(root: Schema, schema: Schema) -> str:
    """A short description of the values that `schema` allows; empty if it has no constraints."""
    schema = _resolved(root, schema)
    if RULE in schema or "const" in schema:
        return schema[RULE] if RULE in schema else shown(schema["const"])
    if "enum" in schema:
        return ", ".join(str(value) for value in schema["enum"])
    if "anyOf" in schema or "oneOf" in schema:
        choices = schema.get("anyOf") or schema["oneOf"]
        return " or ".join(dict.fromkeys(filter(None, (legal(root, choice) for choice in choices))))
    if "properties" in schema:
        return "an object with " + ", ".join(schema["properties"])
    if schema.get("format") == "date-time":
        return "a time with its zone, such as 2026-01-31T18:00:00Z"
    kind = str(schema.get("type", ""))
    bounds = [f"{word} {schema[key]}" for key, word in _BOUNDS.items() if key in schema]
    return " ".join([_KINDS.get(kind, kind), *bounds]).strip()


def _members(schema: Schema) -> Sequence[Any]:
    """The values that a schema lists; none if it has other constraints."""
    return schema.get("enum") or ([schema["const"]] if "const" in schema else ())


def _child(root: Schema, schema: Schema, part: str | int) -> Schema | None:
    """The schema of an entry; None if there is none of this name."""
    for choice in _choices(root, schema):
        if part in choice.get("properties", {}):
            return choice["properties"][part]
        if isinstance(part, int) and (prefix := choice.get("prefixItems")) and part < len(prefix):
            return prefix[part]
        if isinstance(part, int) and "items" in choice:
            return choice["items"]
        if isinstance(choice.get("additionalProperties"), dict):
            return choice["additionalProperties"]
        if patterns := choice.get("patternProperties"):
            return next(iter(patterns.values()))
    return None


def _choices(root: Schema, schema: Schema) -> list[Schema]:
    """The schema and its alternatives, including those of alternatives."""
    inner = (_resolved(root, choice) for choice in schema.get("anyOf", schema.get("oneOf", ())))
    return [schema, *(one for choice in inner for one in _choices(root, choice))]


def _resolved(root: Schema, schema: Schema) -> Schema:
    while "$ref" in schema:
        schema = cast(Schema, root["$defs"][schema["$ref"].rpartition("/")[2]])
    return schema
