"""A workload's parameters as a tree with types, ranges, defaults and meanings, from their JSON schema. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rolecall.spec.json_schema import PLURALS, choices, number_type, selector

_Schema = Mapping[str, Any]
_DEEPEST = 8
"""Deeper lists are not described, because the schema of a list can contain itself."""


@dataclass(frozen=True, slots=True)
class ParamEntry:
    """A parameter, or one of the forms that a parameter can have."""

    name: str
    """Empty for a form."""
    type: str
    """The types of its values, with their ranges; for a form, its title."""
    default: str | None
    """As JSON. `required` if a job must have it; None for a form, and for a parameter that has no constant default."""
    meaning: str
    inner: tuple["ParamEntry", ...] = ()
    """The fields of an object, or the forms if there are several."""


def param_tree(schema: _Schema) -> tuple[ParamEntry, ...]:
    """The parameters in the JSON schema of a workload. A type that contains itself is expanded once."""
    return tuple(_fields(schema, schema, ()))


def _fields(root: _Schema, owner: _Schema, above: tuple[str, ...]) -> Iterator[ParamEntry]:
    """The fields of an object with the schema `owner`, in the titled objects `above`, without those in its title."""
    required = set(owner.get("required", ()))
    for name, field in owner.get("properties", {}).items():
        if "const" in field:
            continue
        forms = list(choices(root, field))
        default = "required" if name in required else json.dumps(field["default"]) if "default" in field else None
        yield ParamEntry(name, _type(root, forms), default, _text(field), _inner(root, forms, above))


def _inner(root: _Schema, forms: Sequence[_Schema], above: tuple[str, ...]) -> tuple[ParamEntry, ...]:
    """The fields of the object among the forms, or an entry for each object if there are several."""
    objects = [form for form in _objects(root, forms) if form.get("title", "") not in above]
    found = [
        ParamEntry("", _title(form), None, _text(form), tuple(_fields(root, form, (*above, form.get("title", "")))))
        for form in objects
    ]
    return found[0].inner if len(found) == 1 else tuple(found)


def _objects(root: _Schema, forms: Sequence[_Schema], depth: int = 0) -> Iterator[_Schema]:
    """The objects with fields among the forms, and among the items of lists and values of mappings."""
    for form in forms:
        if form.get("properties"):
            yield form
        for items in (form.get("items"), form.get("additionalProperties")):
            if isinstance(items, Mapping) and depth < _DEEPEST:
                yield from _objects(root, list(choices(root, cast(_Schema, items))), depth + 1)


def _title(form: _Schema) -> str:
    """The constant that selects the form of a field, or the name of its type."""
    name = selector(form)
    return f"{name}: {json.dumps(form['properties'][name]['const'])}" if name else str(form.get("title", "object"))


def _type(root: _Schema, forms: Iterable[_Schema], depth: int = 0) -> str:
    return " or ".join(dict.fromkeys(_form(root, form, depth) for form in forms))


def _form(root: _Schema, form: _Schema, depth: int) -> str:
    """The type of one form of a value, such as `integer from 1 to 4,096` or `list of strings`."""
    if "const" in form:
        return json.dumps(form["const"])
    if "enum" in form:
        return " or ".join(json.dumps(value) for value in form["enum"])
    kind = form.get("type", "any value")
    if kind == "array":
        return _list(root, form, depth + 1) if depth < _DEEPEST else "list"
    if kind == "object":
        return _title(form) if form.get("properties") else "object"
    return number_type(form) if kind in ("integer", "number") else str(kind)


def _list(root: _Schema, form: _Schema, depth: int) -> str:
    if fixed := form.get("prefixItems"):
        return f"[{', '.join(_type(root, choices(root, item), depth) for item in fixed)}]"
    least, most = form.get("minItems"), form.get("maxItems")
    items = _type(root, choices(root, form.get("items", {})), depth)
    size = f"{least or ''}" if least == most else f"{'one' if least == 1 else least} or more" if least else ""
    plural = items if least == most == 1 else PLURALS.get(items, f"({items})" if " " in items else items)
    return f"list of {size} {plural}" if size else f"list of {plural}"


def _text(schema: _Schema) -> str:
    return " ".join(str(schema.get("description", "")).split())
