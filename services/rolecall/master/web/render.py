"""Templates of the pages."""

from functools import cache, partial
from importlib.resources import files
from typing import Any, cast

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from rolecall import __version__
from rolecall.master.program import program_of
from rolecall.master.web import format as texts

STATIC = files("rolecall.master.web") / "static"
_LACKS_LIBRARIES = (
    "The page can't follow changes, because its libraries are missing. Run `make setup` in the source checkout, then "
    "restart the master."
)
_TEMPLATES = Environment(
    loader=PackageLoader("rolecall.master.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_FILTERS = {one.__name__: one for one in (texts.duration, texts.measure, texts.number, texts.percent, texts.size)}
cast(dict[str, Any], _TEMPLATES.filters).update(_FILTERS)  # pyright: ignore[reportUnknownMemberType] - Jinja's own types


@cache
def lacks_libraries() -> str:
    """The problem of a source checkout whose libraries have not been fetched; empty for a complete page."""
    return "" if (STATIC / "vendor").is_dir() else _LACKS_LIBRARIES


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page, or a part of one, from a template. The template can call `ago(moment)`."""
    now = program_of(request.app).clock.now()
    shared = {"version": __version__, "path": request.scope["path"], "now": now, "ago": partial(texts.ago, now=now)}
    shared["problem"] = lacks_libraries()
    body = _TEMPLATES.get_template(template).render(**values, **shared)
    return HTMLResponse(body, status)
