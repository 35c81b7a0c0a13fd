"""JSON schemas: the alternatives of a value, its valid values in words, and the values that are no defaults. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from rolecall.spec.bounds import RULE
from rolecall.spec.numbers import bound

_Schema = Mapping[str, Any]
_EMPTY: tuple[Any, ...] = (None, {}, [])
_KINDS = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_FORMATS = {
    "date-time": ("a time with its zone", "2026-01-31T18:00:00Z"),
    "date": ("a date", "2026-01-31"),
    "ipvanynetwork": ("a network", "10.1.0.0/16"),
    "duration": ("a duration", "PT30S"),
    "uri": ("a URL", "https://example.com"),
    "uuid": ("a UUID", "3f2b8c1e-9d4a-4e6f-8a7b-5c1d2e3f4a5b"),
}
_SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
PLURALS = {"string": "strings", "integer": "integers", "number": "numbers", "boolean": "booleans", "object": "objects"}


def chosen_params(schema: _Schema, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters without those that have their default, also in nested objects and lists."""
    return _without_defaults(schema, schema, params)


def resolved(root: _Schema, schema: _Schema) -> _Schema:
    """The schema itself instead of a reference to it."""
    while "$ref" in schema:
        schema = cast(_Schema, root["$defs"][schema["$ref"].rpartition("/")[2]])
    return schema


def choices(root: _Schema, schema: _Schema) -> Iterator[_Schema]:
    """The alternatives that `schema` allows, without references, and without unions that have a rule in words."""
    schema = resolved(root, schema)
    unions = () if RULE in schema else ("anyOf", "oneOf", "allOf")
    alternatives = [one for union in unions for one in schema.get(union, ())]
    for one in alternatives:
        yield from choices(root, one)
    if not alternatives:
        yield schema


def not_null(schema: _Schema) -> _Schema:
    """The schema of a value that can be omitted, but not be null."""
    forms = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    return {**schema, "anyOf": forms} if forms else schema


def kinds(root: _Schema, schema: _Schema) -> str:
    """The kinds of values that `schema` allows, such as `a number, a string or a list`; empty if it allows all."""
    found = dict.fromkeys(_kind(form) for form in choices(root, schema))
    return "" if "" in found or not found else _either(found)


def legal(root: _Schema, schema: _Schema) -> str:
    """The values that `schema` allows, such as `an integer from 1 to 64 or null`; empty if it allows all."""
    schema = resolved(root, schema)
    if RULE in schema:
        return schema[RULE]
    forms = list(choices(root, schema))
    # Objects with the same selecting field are one text, at the place of the first.
    objects: dict[str, list[_Schema]] = {}
    for form in forms:
        if name := selector(form):
            objects.setdefault(name, []).append(form)
    texts = (_selected(name, objects[name]) if (name := selector(form)) else _values(root, form) for form in forms)
    return " or ".join(dict.fromkeys(filter(None, texts)))


def selector(form: _Schema) -> str | None:
    """The name of the field with a constant, which selects this form of an object; None if there is none."""
    return next((name for name, field in form.get("properties", {}).items() if "const" in field), None)


def number_type(form: _Schema) -> str:
    """The type of a number with its range, such as `integer from 1 to 4,096` or `number > 0 and ≤ 1`."""
    if "minimum" in form and "maximum" in form:
        return f"{form['type']} from {bound(form['minimum'])} to {bound(form['maximum'])}"
    limits = (f"{sign} {bound(form[key])}" for key, sign in _SIGNS.items() if key in form)
    return " ".join(filter(None, (form["type"], " and ".join(limits))))


def _kind(form: _Schema) -> str:
    return _FORMATS[form["format"]][0] if form.get("format") in _FORMATS else _KINDS.get(str(form.get("type")), "")


def _selected(name: str, forms: Sequence[_Schema]) -> str:
    """The objects that the field `name` selects, with the shortest one as an example."""
    values = [str(form["properties"][name]["const"]) for form in forms]
    shortest = min(forms, key=lambda form: len({*form.get("required", ()), name}))
    example = json.dumps({name: shortest["properties"][name]["const"]})
    if {*shortest.get("required", ())} - {name}:
        example = f"{example[:-1]}, …}}"
    return f"an object whose {name} is {_either(values)}, such as {example}"


def _values(root: _Schema, form: _Schema) -> str:
    """The values of one form."""
    if RULE in form:
        return form[RULE]
    if members(form):
        return _listed(form)
    kind = _kind(form)
    match form:
        case {"format": str(name)} if name in _FORMATS:
            return f"{kind}, such as {_FORMATS[name][1]}"
        case {"type": "integer" | "number"}:
            return f"{kind.partition(' ')[0]} {number_type(form)}"
        case {"type": "string"}:
            size = _count(form.get("minLength"), form.get("maxLength"), "characters")
            details = [f"of {size}" if size else "", f"like {form['pattern']}" if "pattern" in form else ""]
        case {"type": "array"}:
            items = _items(root, form)
            size = _count(form.get("minItems"), form.get("maxItems"), items) or items
            details = [f"of {size}", _listed_items(root, form)]
        case _:
            details = [f"with {', '.join(form['properties'])}" if form.get("properties") else ""]
    return " ".join([kind, *filter(None, details)])


def members(form: _Schema) -> Sequence[Any]:
    """The values that a form lists; none if it has other constraints."""
    return form.get("enum") or ([form["const"]] if "const" in form else ())


def _listed(form: _Schema) -> str:
    return ", ".join(value if isinstance(value, str) else json.dumps(value) for value in members(form))


def _either(words: Iterable[str]) -> str:
    """Such as `a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _items(root: _Schema, form: _Schema) -> str:
    """The items of a list in the plural, such as `strings`; `items` if they are of several kinds."""
    found = {PLURALS.get(str(one.get("type")), "items") for one in _item_forms(root, form)}
    return found.pop() if len(found) == 1 else "items"


def _listed_items(root: _Schema, form: _Schema) -> str:
    """The valid items of a list in parentheses, if there is a list of them."""
    forms = _item_forms(root, form)
    return f"({_listed(forms[0])})" if len(forms) == 1 and members(forms[0]) else ""


def _item_forms(root: _Schema, form: _Schema) -> list[_Schema]:
    items = [*form.get("prefixItems", ()), form.get("items", {})]
    return [one for item in items if item for one in choices(root, item)]


def _count(least: int | None, most: int | None, unit: str) -> str:
    """Such as `1 to 4,096 characters`; empty without bounds."""
    if not least and most is None:
        return ""
    if most is None:
        size, last = f"at least {bound(least or 0)}", least
    elif least and least < most:
        size, last = f"{bound(least)} to {bound(most)}", most
    else:
        size, last = "at most " * (least != most) + bound(most), most
    return f"{size} {unit.removesuffix('s') if last == 1 else unit}"


def _without_defaults(root: _Schema, schema: _Schema, value: Any) -> Any:
    if isinstance(value, Mapping):
        fields = cast(Mapping[str, Any], value)
        form = next(_fitting(root, schema, fields), None)
        return dict(fields) if form is None else dict(_chosen(root, form, fields))
    if isinstance(value, list):
        items = next((form["items"] for form in choices(root, schema) if isinstance(form.get("items"), Mapping)), None)
        entries = cast(list[Any], value)
        return entries if items is None else [_without_defaults(root, items, one) for one in entries]
    return value


def _fitting(root: _Schema, schema: _Schema, fields: Mapping[str, Any]) -> Iterator[_Schema]:
    """The forms of an object that have all these fields, with these constants."""
    for form in choices(root, schema):
        known: Mapping[str, _Schema] = form.get("properties", {})
        if not known or not fields.keys() <= known.keys():
            continue
        if all(known[name].get("const", value) == value for name, value in fields.items()):
            yield form


def _chosen(root: _Schema, form: _Schema, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    required: Sequence[str] = form.get("required", ())
    for name, value in fields.items():
        field = form["properties"][name]
        # A default that a function creates is not in the schema; those are empty.
        is_default = field["default"] == value if "default" in field else name not in required and value in _EMPTY
        if not is_default:
            yield name, _without_defaults(root, field, value)
