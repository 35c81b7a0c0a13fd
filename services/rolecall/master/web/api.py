"""Calls of the HTTP API from within the master, with the rights of the browser's session."""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from fastapi import Request

from rolecall.spec.model import Value

_Document = TypeVar("_Document", bound=Value)
_Query = Mapping[str, str | int | list[str]]
_FORWARDED = ("authorization", "cookie")


class ApiError(Exception):
    """The API answered with an error."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Api:
    """The API as the user of a page sees it. Calls pass the checks of every other call, without a connection."""

    def __init__(self, request: Request) -> None:
        client = (request.client.host, request.client.port) if request.client else ("unknown", 0)
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(request.app, raise_app_exceptions=False, client=client),
            base_url=f"{request.url.scheme}://rolecall",
            headers={name: request.headers[name] for name in _FORWARDED if name in request.headers},
        )

    async def get(self, document: type[_Document], *path: str, query: _Query | None = None) -> _Document:
        """The document at the path of these segments. Raises `ApiError`."""
        return document.model_validate_json(await self.text(*path, query=query))

    async def text(self, *path: str, query: _Query | None = None) -> str:
        """The content at the path of these segments. Raises `ApiError`."""
        response = await self._client.get("".join(f"/{_segment(one)}" for one in path), params=query)
        if response.is_error:
            is_problem = response.headers["content-type"] == "application/problem+json"
            problem: Any = response.json() if is_problem else {}
            raise ApiError(response.status_code, str(problem.get("detail", response.reason_phrase)))
        return response.text


def _segment(name: str) -> str:
    """A name from the address of a page as a segment of a path, which leads to no other route."""
    # The transport decodes `/` before the routes see it.
    if name in {"", ".", ".."} or "/" in name:
        raise ApiError(404, f"{name!r} does not exist")
    return quote(name, safe="")
