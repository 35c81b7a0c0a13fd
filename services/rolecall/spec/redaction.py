"""Takes credentials out of what people and logs get to see: user information and query values of URLs. Pure.

The database and the workers keep the URL as it was given.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator

HIDDEN = "***"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,63}://)([^\s'\"<>`|\\]+)")
"""With a bound on the scheme, because a search without one takes time by the square of a text's length."""
_QUERY_VALUE = re.compile(r"(?<=[?&;])([^=&;#]+=)[^&;#]+")
_PORT = re.compile(r"\d*")


def redact_text(text: str) -> str:
    """`text` with the credentials of every URL in it hidden: `s3://KEY:SECRET@host/x` is `s3://***@host/x`."""
    return _URL.sub(_redact_url, text) if "://" in text else text


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
    scheme, rest = found.groups()
    # A chain of fsspec's, such as `zip://a.zip::https://user:password@host/a.zip`, is matched as one.
    links = [_redact_rest(link) for link in re.split(r"(::(?:[A-Za-z][A-Za-z0-9+.-]*://)?)", rest)]
    return scheme + "".join(links)


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
