"""Types of query parameters and bodies that several routes share."""

from typing import Annotated, Any

from pydantic import Field

Cursor = Annotated[str, Field(pattern="^[0-9]{1,9}$")]
"""A position in a list, from the previous page. Users treat it as opaque."""
LabelFilter = Annotated[str, Field(min_length=1, max_length=381, pattern="^[A-Za-z0-9._/-]+(=[A-Za-z0-9._-]*)?$")]
"""A label with its value, or only its name."""


def merge_patch(schema: str) -> dict[str, Any]:
    """The OpenAPI description of a body that is a JSON Merge Patch (RFC 7396), or that calls itself JSON."""
    reference = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    content = {"application/merge-patch+json": reference, "application/json": reference}
    return {"requestBody": {"content": content, "required": True}}
