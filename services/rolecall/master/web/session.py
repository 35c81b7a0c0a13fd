"""The log-in: a token becomes a session in a cookie (see `master.sessions`)."""

from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response

from rolecall.master.api.auth import USERS, Running, is_same_origin, needs, refusal
from rolecall.master.sessions import LIFETIME, cookie_name
from rolecall.master.web.render import render

router = APIRouter(include_in_schema=False)
_MAX_BODY = 4096


@router.get("/ui/login")
async def form(request: Request, next: str = "/") -> Response:
    return render(request, "login.html", next=_local(next), error="")


@router.post("/ui/login")
async def log_in(request: Request, master: Running) -> Response:
    """Start a session for the token of the form, and return to the page that asked for it."""
    if not is_same_origin(request.headers):
        error = (
            "The request did not come from this page: its header Sec-Fetch-Site or Origin does not name this address. "
            "Log in from this page. Programs use the API instead, with the header Authorization: Bearer TOKEN."
        )
        return render(request, "login.html", next="/", error=error, status=403)
    length = request.headers.get("content-length", "")
    is_small = length.isascii() and length.isdigit() and int(length) <= _MAX_BODY
    fields = parse_qs((await request.body()).decode(errors="replace")) if is_small else {}
    target, token = _local(fields.get("next", ["/"])[0]), fields.get("token", [""])[0].strip()
    session = master.sessions.start(token)
    caller = master.sessions.principal(session) if session else None
    if session is None or caller is None:
        master.sync.unauthenticated.note(refusal(request.scope, None, 401))
        error = "This token is not valid. Copy it again, or ask the operator for a new one."
        return render(request, "login.html", next=target, error=error, status=401)
    if caller.scopes.isdisjoint(USERS):
        error = f"The token {caller.name} can't log in: it has only the scope {' and '.join(sorted(caller.scopes))}."
        return render(request, "login.html", next=target, error=error, status=403)
    response = RedirectResponse(target, 303)
    response.set_cookie(
        cookie_name(request.url.scheme),
        session,
        max_age=int(LIFETIME.total_seconds()),
        httponly=True,
        secure=request.url.scheme == "https",
        samesite="lax",
    )
    return response


@router.post("/ui/logout", dependencies=[Depends(needs(*USERS))])
async def log_out(request: Request) -> Response:
    response = RedirectResponse("/ui/login", 303)
    secure = request.url.scheme == "https"
    response.delete_cookie(cookie_name(request.url.scheme), httponly=True, secure=secure, samesite="lax")
    return response


def _local(path: str) -> str:
    """`path` if it is a page of this master, otherwise the first page: a link must not lead to another site."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local else "/"
