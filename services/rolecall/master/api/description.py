"""What the API is, for people in a browser and for programs: `/docs` and `/openapi.json`.

A browser can't be told to send a bearer token, but it asks for a password. So a token passes as that, here.
The page loads nothing from elsewhere: Swagger UI's files come from the installed package `fastapi-offline`.
"""

from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from rolecall.master.api.auth import needs_reader

router = APIRouter(dependencies=[Depends(needs_reader)], include_in_schema=False)
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
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
# A file, because the content security policy allows no inline scripts.
_START = """const description = new URL("openapi.json", document.baseURI);
// Browsers fetch no address with a password in it, as the page's own may be; they remember the password.
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
    """The interface as OpenAPI describes it."""
    return request.app.openapi()


@router.get("/docs")
async def docs() -> HTMLResponse:
    """The interface as a page on which calls can be tried."""
    return HTMLResponse(_PAGE)


@router.get("/docs/start.js")
async def start() -> Response:
    """What starts the page."""
    return Response(_START, media_type="text/javascript")


@router.get("/docs/swagger-ui-bundle.js")
def script() -> Response:
    """Swagger UI."""
    return _file("swagger-ui-bundle.js", "text/javascript")


@router.get("/docs/swagger-ui.css")
def style() -> Response:
    """Its style."""
    return _file("swagger-ui.css", "text/css")


@router.get("/")
async def home() -> RedirectResponse:
    """The way to the description."""
    return RedirectResponse("/docs")


def _file(name: str, media_type: str) -> Response:
    headers = {"Cache-Control": f"private, max-age={_MONTH_S}"}
    return Response((_STATIC / name).read_bytes(), headers=headers, media_type=media_type)
