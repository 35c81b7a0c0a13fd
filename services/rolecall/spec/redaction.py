"""Redaction of credentials in text for people and logs: user information and query values of URLs. Pure.

The database and the workers keep the original URL.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator

HIDDEN = "***"
# Both take linear time on any text, because no match attempt restarts inside text that was already scanned.
_AFTER_SCHEME = re.compile(r"(?<=://)[^\s'\"<>`|\\]+")
_QUERY_VALUE = re.compile(r"(?<=[?&;])([^=&;#?]+=)[^&;#]+")
_LINK = re.compile(r"(::(?:[A-Za-z][A-Za-z0-9+.-]*://)?)")
_MAX_LINKS = 16
"""The rest of a longer chain is treated as one link, in which more is hidden than necessary."""
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
    # The match can be an fsspec chain, such as `zip://a.zip::https://user:password@host/a.zip`.
    return "".join(_redact_link(link) for link in _LINK.split(found[0], maxsplit=_MAX_LINKS))


def _redact_link(link: str) -> str:
    authority = re.split("[/?#]", link, maxsplit=1)[0]
    user, at, _ = authority.rpartition("@")
    if not at and not _PORT.fullmatch(authority.partition(":")[2]) and not authority.startswith("["):
        # Not a port, but a password with an unescaped slash. It extends to the last `@`.
        user, at, _ = link.rpartition("@")
    shown = f"{HIDDEN}@{link[len(user) + 1 :]}" if at else link
    return _QUERY_VALUE.sub(rf"\1{HIDDEN}", shown)


Redacted = Annotated[str, AfterValidator(redact_text)]
"""Text for people. It never contains credentials of URLs, regardless of its origin."""
RedactedObject = Annotated[dict[str, Any], AfterValidator(redact)]
"""A JSON object for people, likewise."""
