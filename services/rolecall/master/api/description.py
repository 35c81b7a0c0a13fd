"""What the API is, for people in a browser and for programs: `/docs` and `/openapi.json`.

A browser can't be told to send a bearer token, but it asks for a password. So a token passes as that, here.
"""

from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, RedirectResponse

from rolecall.master.api.auth import needs_reader

router = APIRouter(dependencies=[Depends(needs_reader)], include_in_schema=False)


@router.get("/openapi.json")
async def schema(request: Request) -> dict[str, Any]:
    """The interface as OpenAPI describes it."""
    return request.app.openapi()


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """The interface as a page on which calls can be tried."""
    return get_swagger_ui_html(openapi_url="openapi.json", title=request.app.title)


@router.get("/")
async def home() -> RedirectResponse:
    """The way to the description."""
    return RedirectResponse("/docs")
