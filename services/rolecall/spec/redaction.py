"""Redaction of credentials in text for people and logs: user information and query values of URLs. Pure.

The database and the workers keep the original URL.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo

HIDDEN = "***"
# Both take linear time on any text, because no match attempt restarts inside text that was already scanned.
# A backslash doesn't end a URL, because JSON and `repr` write some characters of passwords with one.
_AFTER_SCHEME = re.compile(r"(?<=://)[^\s'\"<>`|]+")
_QUERY_VALUE = re.compile(r"(?<=[?&;])([^=&;#?]+=)[^&;#]+")
_BEFORE_QUERY_VALUE = re.compile("[?&;]")
_LINK = re.compile(r"(::(?:[A-Za-z][A-Za-z0-9+.-]*://)?)")
_MAX_LINKS = 16
"""The rest of a longer chain is treated as one link, in which more is hidden than necessary."""
_PORT = re.compile(r"\d*")
_END_OF_AUTHORITY = re.compile("[/?#]")
_USER_OR_PORT = re.compile("[^/?#]*[@:]")
_MAX_EXAMINED = 64
"""Of the URLs of a text or value that may have credentials, more are hidden as a whole. Each takes up to 0.1 ms."""


def redact_text(text: str) -> str:
    """`text` with the credentials of every URL in it hidden: `s3://KEY:SECRET@host/x` is `s3://***@host/x`."""
    return _Redaction().text(text)


def redact(value: Any) -> Any:
    """A JSON value with the credentials of every URL in it hidden, in keys as well."""
    return _Redaction().value(value)


class _Redaction:
    """The redaction of one text or value."""

    def __init__(self) -> None:
        self._examined = 0

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(key): self.value(one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
        return value

    def text(self, text: str) -> str:
        return _AFTER_SCHEME.sub(self._url, text) if "://" in text else text

    def _url(self, found: re.Match[str]) -> str:
        url = found[0]
        if not _may_have_credentials(url):
            return url
        self._examined += 1
        if self._examined > _MAX_EXAMINED:
            return HIDDEN
        # It can be an fsspec chain, such as `zip://a.zip::https://user:password@host/a.zip`.
        links = _LINK.split(url, maxsplit=_MAX_LINKS)
        return "".join(_redact_link(link) if _may_have_credentials(link) else link for link in links)


def _may_have_credentials(url: str) -> bool:
    """False only if nothing is hidden, as in most URLs with `@` or `=` in their paths."""
    if "@" in url and ("::" in url or _USER_OR_PORT.match(url)):  # Each link of a chain has its own authority.
        return True
    return "=" in url and _BEFORE_QUERY_VALUE.search(url) is not None


def _redact_link(link: str) -> str:
    authority = _END_OF_AUTHORITY.split(link, maxsplit=1)[0]
    user, at, _ = authority.rpartition("@")
    if not at and not _PORT.fullmatch(authority.partition(":")[2]) and not authority.startswith("["):
        # Not a port, but a password with an unescaped slash. It extends to the last `@`.
        user, at, _ = link.rpartition("@")
    shown = f"{HIDDEN}@{link[len(user) + 1 :]}" if at else link
    return _QUERY_VALUE.sub(rf"\1{HIDDEN}", shown)


STORED: Mapping[str, Any] = MappingProxyType({})
"""The validation context of values from the database, which were redacted before they were stored."""


def _redacted(text: str, info: ValidationInfo) -> str:
    return text if info.context is STORED else redact_text(text)


Redacted = Annotated[str, AfterValidator(_redacted)]
"""Text for people. It never contains credentials of URLs, regardless of its origin."""
RedactedObject = Annotated[dict[str, Any], AfterValidator(redact)]
"""A JSON object for people, likewise."""
