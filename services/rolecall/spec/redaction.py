"""Takes credentials out of what people and logs get to see: user information and query values of URLs. Pure.

The database and the workers keep the URL as it was given.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator

HIDDEN = "***"
# Both take time linear in the text, whatever it is: neither begins anew inside of what it has just read.
_AFTER_SCHEME = re.compile(r"(?<=://)[^\s'\"<>`|\\]+")
_QUERY_VALUE = re.compile(r"(?<=[?&;])([^=&;#?]+=)[^&;#]+")
_LINK = re.compile(r"(::(?:[A-Za-z][A-Za-z0-9+.-]*://)?)")
_MOST_LINKS = 16
"""Of a longer chain the rest counts as one link, in which more is hidden than need be."""
_PORT = re.compile(r"\d*")


def redact_text(text: str) -> str:
    """`text` with the credentials of every URL in it hidden: `s3://KEY:SECRET@host/x` is `s3://***@host/x`."""
    return _AFTER_SCHEME.sub(_redact_url, text) if "://" in text else text


def redact(value: Any) -> Any:
    """A JSON value with the credentials of every URL in it hidden, in keys as well."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {redact(key): redact(one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [redact(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def _redact_url(found: re.Match[str]) -> str:
    # A chain of fsspec's, such as `zip://a.zip::https://user:password@host/a.zip`, is matched as one.
    return "".join(_redact_rest(link) for link in _LINK.split(found[0], maxsplit=_MOST_LINKS))


def _redact_rest(rest: str) -> str:
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    user, at, _ = authority.rpartition("@")
    if not at and not _PORT.fullmatch(authority.partition(":")[2]) and not authority.startswith("["):
        # No port: a password with an unescaped slash, which lasts to the last `@`.
        user, at, _ = rest.rpartition("@")
    shown = f"{HIDDEN}@{rest[len(user) + 1 :]}" if at else rest
    return _QUERY_VALUE.sub(rf"\1{HIDDEN}", shown)


Redacted = Annotated[str, AfterValidator(redact_text)]
"""Text that is for people: it never holds a URL's credentials, wherever it came from."""
RedactedObject = Annotated[dict[str, Any], AfterValidator(redact)]
"""A JSON object that is for people, likewise."""
