"""The description of the API: `/docs` for people, `/openapi.json` for programs.

The calls of nodes and workers are in a document of their own, `/internal/openapi.json`.

Browsers ask for a password instead of sending a bearer token, so these routes accept a token as the password.
The page loads nothing from other hosts: Swagger UI's files come from the installed package `fastapi-offline`.
"""

from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response

from rolecall.master.api.auth import needs, needs_reader
from rolecall.master.api.openapi import of_nodes, of_users
from rolecall.spec.access import Scope

router = APIRouter(dependencies=[Depends(needs_reader)], include_in_schema=False)
nodes_router = APIRouter(dependencies=[Depends(needs(Scope.NODE))], include_in_schema=False)
_STATIC = files("fastapi_offline") / "static"
_MONTH_S = 30 * 86_400
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Rolecall</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="stylesheet" href="docs/own.css">
</head>
<body>
<nav><a href="./">← Rolecall</a></nav>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
# Not a part of Swagger UI's file, which browsers keep for a month.
_STYLE = """nav { padding: 12px 20px 0; font: 14px sans-serif; }
nav a { color: #2449c8; }
.dark-mode nav a { color: #92adff; }
/* On a phone, the table of an operation's responses is wider than the page. */
.swagger-ui .responses-inner { overflow-x: auto; }
html.dark-mode .swagger-ui .examples-select__section-label { color: #e4e6e6; }
"""
# A file, because the content security policy allows no inline scripts.
_START = """const dark = matchMedia("(prefers-color-scheme: dark)");
const followMode = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", followMode);
followMode();
const description = new URL("openapi.json", document.baseURI);
// Browsers fetch no URL that contains a password, as the page's own may. They remember the password.
description.username = description.password = "";
SwaggerUIBundle({
  url: description.href,
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
"""


@router.get("/openapi.json")
async def schema(request: Request) -> dict[str, Any]:
    return of_users(request.app.openapi())


@nodes_router.get("/internal/openapi.json")
async def nodes_schema(request: Request) -> dict[str, Any]:
    return of_nodes(request.app.openapi())


@router.get("/docs")
async def docs() -> HTMLResponse:
    return HTMLResponse(_PAGE)


@router.get("/docs/start.js")
async def start() -> Response:
    return Response(_START, media_type="text/javascript")


@router.get("/docs/own.css")
async def own_style() -> Response:
    return Response(_STYLE, media_type="text/css")


@router.get("/docs/swagger-ui-bundle.js")
def script() -> Response:
    return _file("swagger-ui-bundle.js", "text/javascript")


@router.get("/docs/swagger-ui.css")
def style() -> Response:
    return _file("swagger-ui.css", "text/css")


def _file(name: str, media_type: str) -> Response:
    headers = {"Cache-Control": f"private, max-age={_MONTH_S}"}
    return Response((_STATIC / name).read_bytes(), headers=headers, media_type=media_type)
