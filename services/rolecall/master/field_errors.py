"""The field errors of a request: a list of fields, each with the given value and the valid values. Pure."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from rolecall.spec.json_schema import legal, members, resolved, selector
from rolecall.spec.redaction import redact, redact_beginning
from rolecall.spec.similar import most_similar
from rolecall.spec.value_errors import WRONG_KIND, is_of_kind, worded
from rolecall.spec.visible import listed, one_line

Schema = Mapping[str, Any]
FieldError = dict[str, str]
Path = tuple[str | int, ...]
MAX_FIELD_ERRORS = 20
"""The maximum number of field errors in one response."""
MORE_ERRORS = "…"
"""The field of the entry that counts further errors."""
_READ_ERRORS = 1000
_NO_CHOICE = {"enum", "literal_error"}
"""Errors of a value that is not a listed one."""
_READ_CHARS = 8192
"""The length to which a text is cut before redaction, because a request can have many long ones."""
_GIVEN_CHARS = 200
_FIELD_CHARS = 300
_MESSAGE_CHARS = 2000
# The time of the search for similar names grows with the product of both.
_NEAR_CHARS, _NEAR_NAMES = 80, 256
_LISTED_NAMES = 256
_NAMED = re.compile(r"[a-z]\w*(?:\.[a-z]\w*)*")
_WORD = re.compile(r"\w+")
_UNKNOWN: Any = object()
"""For a value that the caller does not have."""
_OF_JOB = "; the workload's parameters belong in 'params'"


@dataclass(frozen=True, slots=True)
class ErrorPlace:
    """The place of an error: its path in the value, without the names that pydantic gives to a union's alternatives."""

    path: Path
    schema: Schema
    given: Any
    """The value at the place, if it is known."""
    alternatives: tuple[tuple[int, str | int], ...]
    """The alternatives of undiscriminated unions on the way: the length of the path there, and the name."""


def field_error(field: str, message: str, given: Any, legal: str) -> FieldError:
    """One field error; long texts are cut. It has no `legal` if the message says itself what is valid."""
    error = {"field": _cut(field, _FIELD_CHARS), "message": _cut(message, _MESSAGE_CHARS), "given": shown(given)}
    return error | {"legal": legal} if legal else error


def unknown(field: str, kind: str, given: str, names: Iterable[str], advice: str = "") -> FieldError:
    """The error of an unknown name, with the most similar known one, or else with `advice`."""
    legal = sorted(map(str, names))
    message = f"there is no {kind} {_quoted(given)}{_hint(given, legal) or advice}"
    return field_error(field, message, given, listed(legal, _LISTED_NAMES) or "none")


def _hint(given: str, legal: Collection[str]) -> str:
    near = most_similar(given, legal) if len(given) <= _NEAR_CHARS and len(legal) <= _NEAR_NAMES else None
    # In a union without a field that selects, a name of another alternative is wrong too.
    return f"; did you mean '{near}'?" if near and near != given else ""


def explain(
    errors: Sequence[Mapping[str, Any]], schema: Schema, prefix: tuple[str, ...] = (), value: Any = _UNKNOWN
) -> list[FieldError]:
    """The field errors for pydantic's `errors` about `value` with the JSON schema `schema`; `prefix` precedes names.

    Explains the first `MAX_FIELD_ERRORS`; a last entry counts the others. Validators can make a list or an object of a
    single value. With `value`, errors are at the place that `value` has.
    """
    chosen = meant(errors, schema, value)
    first = chosen[:MAX_FIELD_ERRORS]
    explained = [
        one
        for error in first
        for one in (_explain_one(error, schema, prefix, value), *_unknown_fields(error, schema, prefix, value))
    ]
    return shortened(explained, len(explained) + len(chosen) - len(first))


def shortened(errors: Sequence[FieldError], count: int) -> list[FieldError]:
    """The first `MAX_FIELD_ERRORS` of `count` errors, and an entry that counts the others."""
    first = list(errors[:MAX_FIELD_ERRORS])
    if count > len(first):
        more = f"{count - len(first)} more problems are not listed; fix these first"
        first.append({"field": MORE_ERRORS, "message": more, "given": ""})
    return first


def shown(given: Any) -> str:
    """The value as short JSON without credentials. Reads only the beginning of a large value."""
    text = ""
    for chunk in json.JSONEncoder(default=str).iterencode(given):
        before, quote, string = chunk.partition('"')  # A string is one chunk, so no URL is cut.
        text += before + quote + (redact(string) if len(string) <= _READ_CHARS else string)
        if len(text) > _GIVEN_CHARS:
            break
    return _cut(text, _GIVEN_CHARS)


def _quoted(given: str) -> str:
    return f"'{one_line(_cut(given, _GIVEN_CHARS))}'"


def _cut(text: str, max_chars: int) -> str:
    """The beginning of a text. Redacts first, because some credentials can't be recognized without their end."""
    shown = redact_beginning(text, _READ_CHARS)
    return shown if len(shown) <= max_chars else f"{shown[:max_chars]}…"


def _explain_one(error: Mapping[str, Any], schema: Schema, prefix: tuple[str, ...], value: Any) -> FieldError:
    is_missing = error["type"] == "missing"
    place = locate(schema, error["loc"], _UNKNOWN if is_missing else value)
    path = (*prefix, *map(str, place.path))
    if error["type"] == "extra_forbidden":
        inner = locate(schema, error["loc"][:-1])
        names = {name for choice in _choices(schema, inner.schema) for name in choice.get("properties", ())}
        name = str(error["loc"][-1])
        is_of_job = len(error["loc"]) == 1 and "params" in names
        return unknown(".".join((*prefix, *map(str, inner.path), name)), "field", name, names, _OF_JOB * is_of_job)
    if error["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        return _explain_tag(error, schema, place, path)
    if error["loc"] and error["loc"][-1] == "[key]":
        return _explain_key(error, schema, prefix)
    if is_missing:
        return field_error(".".join(path) or "body", "it is missing", None, legal(schema, place.schema))
    if _is_of_fields(error):
        return _explain_rule(error, schema, place, path)
    return _explain_value(error, schema, place.schema, ".".join(path) or "body")


def _explain_rule(error: Mapping[str, Any], root: Schema, place: ErrorPlace, path: tuple[str, ...]) -> FieldError:
    """The error of a rule about several fields of an object, with only the fields that are wrong."""
    message = worded(error, root, place.schema)
    # The input of an error can be empty, and what the user has sent can be the short form of an object.
    is_object = isinstance(place.given, Mapping)
    given: Mapping[str, Any] = place.given if is_object else error["input"]
    if inner := _first_named(message, root, place.schema):
        return field_error(".".join((*path, *inner)), message, _value_at(given, inner), "")
    named = {name: given[name] for name in _WORD.findall(message) if name in given}
    # An object with names of the user's choice is a single value.
    is_value = is_object and not any("properties" in choice for choice in _choices(root, place.schema))
    return field_error(".".join(path) or "body", message, given if is_value else named or None, "")


def _explain_value(
    error: Mapping[str, Any], root: Schema, schema: Schema, field: str, what: str = "value"
) -> FieldError:
    """The error of a value or a name with the schema `schema`."""
    message, given = worded(error, root, schema), error.get("input")
    names = [str(one) for choice in _choices(root, schema) for one in members(choice)]
    is_choice = error["type"] in _NO_CHOICE or (bool(names) and error["type"] == WRONG_KIND)
    if isinstance(given, str) and (is_choice or error["type"] == "string_pattern_mismatch"):
        message = f"{_quoted(given)} is not a valid {what}{_hint(given, names)}"
    return field_error(field, message, given, legal(root, schema))


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
        here = resolved(root, inner)
    return names


def _value_at(given: Any, path: Sequence[str]) -> Any:
    """The value of a field that may be missing."""
    for name in path:
        given = cast(Mapping[str, Any], given).get(name) if isinstance(given, Mapping) else None
    return given


def _explain_tag(error: Mapping[str, Any], root: Schema, place: ErrorPlace, path: tuple[str, ...]) -> FieldError:
    """The error of a union whose field that names the alternative is missing or unknown."""
    context: Mapping[str, Any] = error["ctx"]
    known = cast(Mapping[str, str], place.schema.get("discriminator", {}))
    name = known.get("propertyName") or str(context["discriminator"]).strip("'")
    choices = (choice.get("properties", {}) for choice in _choices(root, place.schema))
    names = [str(tag) for fields in choices if name in fields for tag in members(resolved(root, fields[name]))]
    tags = list(dict.fromkeys(names)) or str(context.get("expected_tags", "")).replace("'", "").split(", ")
    field = ".".join(path if _is_scalar(place.given) else (*path, name))
    if error["type"] == "union_tag_not_found":
        return field_error(field, "it is missing", None, listed(sorted(tags), _LISTED_NAMES) or "none")
    return unknown(field, field.rpartition(".")[2], str(error["ctx"]["tag"]), tags)


def _unknown_fields(
    error: Mapping[str, Any], root: Schema, prefix: tuple[str, ...], value: Any
) -> Iterator[FieldError]:
    """The fields that no alternative has, if the field that names the alternative is missing or unknown."""
    given = error.get("input")
    if error["type"] not in {"union_tag_invalid", "union_tag_not_found"} or not isinstance(given, Mapping):
        return
    place = locate(root, error["loc"], value)
    choices = [choice for choice in _choices(root, place.schema) if "properties" in choice]
    if any(choice.get("additionalProperties") is not False for choice in choices):
        return
    names = {name for choice in choices for name in choice.get("properties", ())}
    for name in islice((str(name) for name in cast(Mapping[Any, Any], given) if name not in names), MAX_FIELD_ERRORS):
        yield unknown(".".join((*prefix, *map(str, place.path), name)), "field", name, names)


def _explain_key(error: Mapping[str, Any], schema: Schema, prefix: tuple[str, ...]) -> FieldError:
    """The error of a key of an object with keys of a kind."""
    owner = locate(schema, error["loc"][:-2])
    key = str(error["loc"][-2])
    choices = _choices(schema, owner.schema)
    rules: list[Schema] = [choice["propertyNames"] for choice in choices if "propertyNames" in choice]
    patterns = (name for choice in choices for name in cast(Schema, choice.get("patternProperties", {})))
    rules += [{"type": "string", "pattern": pattern} for pattern in patterns]
    rule = {name: value for one in rules for name, value in resolved(schema, one).items()}
    field = ".".join((*prefix, *map(str, owner.path), key))
    return _explain_value({**error, "input": key}, schema, rule, field, "name")


def meant(errors: Sequence[Mapping[str, Any]], schema: Schema, value: Any = _UNKNOWN) -> list[Mapping[str, Any]]:
    """The errors without those of alternatives that the user did not mean, and without wrong counts of items.

    For a union, pydantic lists the errors of every alternative. If some accept the kind of the value, such as an
    object, only their errors count. Otherwise one error represents all alternatives.
    """
    owners = {tuple(error["loc"][:length]) for error in errors for length in range(len(error["loc"]))}
    errors = [error for error in errors if not (tuple(error["loc"]) in owners and _miscounts(error))]
    # The place of an unknown field is that of its object.
    places = [
        locate(schema, error["loc"][:-1] if error["type"] == "extra_forbidden" else error["loc"], value)
        for error in errors[:_READ_ERRORS]
    ]
    unions: dict[Path, dict[str | int, list[bool]]] = {}
    for error, place in zip(errors, places, strict=False):
        for depth, label in place.alternatives:
            is_other_kind = len(place.path) == depth and (error["type"] in _NO_CHOICE or is_of_kind(error["type"]))
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
            end = next(end for end in range(len(error["loc"])) if locate(schema, error["loc"][:end]).path == wrong)
            kept.append({**error, "loc": error["loc"][:end], "type": WRONG_KIND})
    return [*kept, *errors[_READ_ERRORS:]]


def _miscounts(error: Mapping[str, Any]) -> bool:
    """True for a list that is long enough, but has too few valid items: pydantic counts only those."""
    given = error.get("input")
    return error["type"] == "too_short" and isinstance(given, Sized) and len(given) >= error["ctx"]["min_length"]


def locate(root: Schema, loc: Iterable[str | int], value: Any = _UNKNOWN) -> ErrorPlace:
    """The place of an error in `value` with the schema `root`; no deeper than `value` has lists and objects."""
    here: Schema = resolved(root, root)
    path, alternatives = list[str | int](), list[tuple[int, str | int]]()
    for part in loc:
        if (selected := _selected(root, here, part)) is not None:
            here = selected
            continue
        inner = _child(root, here, part)
        if inner is None and ("anyOf" in here or "oneOf" in here):
            title = str(part).rstrip("]").rpartition(", ")[2]  # With a validator: function-after[check(), Title].
            named = (one for one in _choices(root, here)[1:] if one.get("title") == title)
            alternatives.append((len(path), part))
            here = next(named, here)
        elif _is_scalar(value):
            break
        elif inner is not None or here or not alternatives:
            here = {} if inner is None else resolved(root, inner)
            path.append(part)
            value = _entry(value, part)
    return ErrorPlace(tuple(path), here, value, tuple(alternatives))


def _selected(root: Schema, schema: Schema, part: str | int) -> Schema | None:
    """The alternative of a union that `part` selects as the value of a field; None if there is none.

    The union can itself be an alternative, next to null. If a validator makes objects of names, the schema of its input
    lists the names and the alternatives, without the field that selects.
    """
    if not isinstance(part, str) or ("anyOf" not in schema and "oneOf" not in schema):
        return None
    for choice in _choices(root, schema):
        tags = cast(Mapping[str, str], choice.get("discriminator", {}).get("mapping", {}))
        if part in tags:
            return resolved(root, {"$ref": tags[part]})
        if (name := selector(choice)) and choice["properties"][name]["const"] == part:
            return choice
    return None


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _entry(value: Any, part: str | int) -> Any:
    """The entry of a list or an object, if it is known."""
    if isinstance(value, Mapping):
        return cast(Mapping[Any, Any], value).get(part, _UNKNOWN)
    entries = cast(list[Any], value) if isinstance(value, list) else []
    return entries[part] if isinstance(part, int) and part < len(entries) else _UNKNOWN


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
    inner = (resolved(root, choice) for choice in schema.get("anyOf", schema.get("oneOf", ())))
    return [schema, *(one for choice in inner for one in _choices(root, choice))]
