"""JSON schemas of workloads' parameters: the alternatives of a value, and the values that are no defaults. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

_Schema = Mapping[str, Any]
_EMPTY: tuple[Any, ...] = (None, {}, [])


def chosen_params(schema: _Schema, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters without those that have their default, also in nested objects and lists."""
    return _without_defaults(schema, schema, params)


def choices(root: _Schema, schema: _Schema) -> Iterator[_Schema]:
    """The alternatives that `schema` allows, without references and unions."""
    if "$ref" in schema:
        schema = cast(_Schema, root["$defs"][schema["$ref"].rpartition("/")[2]])
        yield from choices(root, schema)
        return
    alternatives = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
    for one in alternatives:
        yield from choices(root, one)
    if not alternatives:
        yield schema


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
