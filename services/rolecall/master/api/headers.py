"""The headers of responses in the OpenAPI document. Pure."""

from typing import Any

COMPONENTS = "#/components/headers/"
_TEXT = {"type": "string"}
HEADERS: dict[str, dict[str, Any]] = {
    "Accept-Ranges": {"description": "The unit of ranges.", "schema": {"type": "string", "const": "bytes"}},
    "Content-Disposition": {"description": "The file name under which a browser saves it.", "schema": _TEXT},
    "Content-Length": {"description": "The number of bytes of the file.", "schema": {"type": "integer", "minimum": 0}},
    "Content-Range": {"description": "The range, and the size of the whole file.", "schema": _TEXT},
    "ETag": {"description": "The digest of the content, for `If-None-Match` and `If-Range`.", "schema": _TEXT},
    "Location": {"description": "The path of what was created.", "schema": _TEXT},
    "Retry-After": {
        "description": "The number of seconds after which to try again.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "WWW-Authenticate": {"description": "The kinds of authentication that the path accepts.", "schema": _TEXT},
    "X-Content-SHA256": {"description": "The SHA-256 of the whole file.", "schema": _TEXT},
}
"""The components of the document: each response that has a header refers to its description here."""
for _header in HEADERS.values():
    _header["required"] = True


def with_headers(*names: str) -> dict[str, Any]:
    """The part of a response's description that says which headers it always has."""
    return {"headers": {name: {"$ref": f"{COMPONENTS}{name}"} for name in names}} if names else {}
