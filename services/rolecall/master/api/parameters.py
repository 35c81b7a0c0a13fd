"""Parameters of routes: types that several routes share, and the check for unknown query parameters."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Path, Query, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import ParamTypes
from pydantic import AfterValidator, Field

from rolecall.master.field_errors import MAX_FIELD_ERRORS, shortened, unknown
from rolecall.spec.bounds import RULE, WITHOUT_SPACES, matching
from rolecall.spec.errors import InvalidRequest

JobId = Annotated[str, Path(description="The job's id, such as `rnn-lm-3`.")]
NodeName = Annotated[str, Path(description="The node's name.")]
TokenName = Annotated[str, Path(description="The token's name.")]
LabelFilter = Annotated[
    str,
    Field(min_length=1, max_length=381),
    WITHOUT_SPACES,
    matching("^[A-Za-z0-9._/-]+(=[A-Za-z0-9._-]*)?$", "the NAME of a label, or NAME=VALUE, such as team=data-science"),
]


CURSOR = Query(
    description="`next_cursor` of the previous page.",
    json_schema_extra={RULE: "the next_cursor of the previous page, unchanged"},
)
"""The parameter of a place in a list, which users treat as opaque."""


def accepted_by(parse: Callable[[str], Any]) -> AfterValidator:
    """A validator of an optional text, for which `parse` raises a `ValueError` unless it is valid."""

    def check(text: str | None) -> str | None:
        if text is not None:
            parse(text)
        return text

    return AfterValidator(check)


def merge_patch(schema: str) -> dict[str, Any]:
    """The OpenAPI description of a body that is a JSON Merge Patch (RFC 7396), or that calls itself JSON."""
    reference = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    content = {"application/merge-patch+json": reference, "application/json": reference}
    return {"requestBody": {"content": content, "required": True}}


async def refuse_unknown_parameters(request: Request) -> None:
    """A dependency that answers 422 to unknown query parameters, which would otherwise have no effect.

    Calls of nodes and workers can have unknown ones, because they can be of a newer release.
    """
    if not request.query_params or request.scope["path"].startswith("/internal/"):
        return
    legal = query_names(request.scope.get("route"))
    strange = [name for name in dict.fromkeys(request.query_params) if name not in legal]
    if strange:
        errors = [unknown(name, "query parameter", name, legal) for name in strange[:MAX_FIELD_ERRORS]]
        raise InvalidRequest(shortened(errors, len(strange)))


def query_names(route: Any) -> frozenset[str]:
    return frozenset(field.alias for field in parameters_of(route) if field.field_info.in_ is ParamTypes.query)


def parameters_of(route: Any) -> list[Any]:
    """The parameters of a route in its path, query and headers; none if there is no route."""
    return get_flat_params(route.dependant) if route is not None else []
