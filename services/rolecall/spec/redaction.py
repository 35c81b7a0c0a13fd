"""Redaction of credentials in text for people and logs. Pure.

| Hidden | Examples |
| --- | --- |
| user information and query values of URLs | `s3://***@bucket/a`, `https://host/a?sig=***` |
| bearer tokens, and values of headers | `Bearer ***`, `Authorization: Basic ***`, `x-api-key: ***` |
| private keys in PEM | `***` |
| values of names in capitals that end in `_KEY` or `_TOKEN` | `SIGNING_KEY=***`, `CI_TOKEN=***` |
| values of names that end in `password`, `passwd` or `secret` | `PGPASSWORD=***`, `'client_secret': '***'` |
| values of names that end in a common kind of key | `api_key=***`, `aws_secret_access_key=***`, `AccountKey=***` |
| values of `token`, and of names that end in a common kind of it | `'token': '***'`, `hf_token=***` |

Other names that end in `key` or `token` are often no secrets: `sort_key`, `pad_token`, or the path ROLECALL_TLS_KEY.
Neither are null, true and false. Of a large text or value, only the beginning is searched for what is neither
a URL nor the value of a field. The database and the workers keep the original text.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo

HIDDEN = "***"
# They take linear time on any text, because a match attempt restarts at most 100 characters before the end of what was
# scanned. In prose, a delimiter ends a URL, except inside a word: passwords can contain one. A backslash doesn't end a
# URL, because JSON and `repr` write some characters of passwords with one.
_DELIMITER = r"'\"<>`|"
_PORT_IN_PROSE = rf"\d*[.,;:!?)\]}}]*(?:[\s/?#{_DELIMITER}]|$)"
# What follows a colon and is no port is a password. It can contain spaces and delimiters, and ends with an `@`.
_PASSWORD = rf"[^\s/?#@:\[{_DELIMITER}]*:(?!{_PORT_IN_PROSE})(?:(?!://)[^@\n]){{1,100}}+@"
_AFTER_SCHEME = re.compile(
    # JSON can escape slashes.
    rf"(?:(?<=://)|(?<=:\\/\\/))(?:{_PASSWORD})?(?:[^\s{_DELIMITER}]|(?<=[\w\\])[{_DELIMITER}](?=\w))+"
)
_BEFORE_SCHEME = re.compile(r"\s*[A-Za-z][\w+.:-]*")
# A value extends to the next `name=`, because it can contain `#`, `&` and `;` as they are.
_QUERY_VALUE = re.compile(r"(?<=[?&;])([^=&;#?]+=)[^&;]+(?:[&;](?![^=&;#?]+=)[^&;]*)*")
_BEFORE_QUERY_VALUE = re.compile("[?&;]")
_MAX_LINKS = 16
"""The rest of a longer chain is treated as one link, in which more is hidden than necessary."""
_HOST = re.compile(rf"(?:\[[^\]]*\]?|[^\s:{_DELIMITER}]*)(?::\d*)?")
_END_OF_AUTHORITY = re.compile("[/?#]")
_USER_OR_PORT = re.compile("[^/?#]*[@:#]")
_MAX_EXAMINED = 64
"""Of the URLs of a text or value that may have credentials, more are hidden as a whole. Each takes up to 0.1 ms."""
_MAX_QUERY_CHARS = 8192
"""A longer query of a URL is hidden as a whole. More would take more than 1 ms."""
_MAX_SEARCHED = 1 << 16
"""The characters of a text or value that are searched for what is not a URL. It takes up to 0.3 µs for each."""
_MARGIN = 1000
# Ends of the names of variables, options and fields.
_ENDING = (
    r"(?=[A-Z0-9_abghmnprst])"  # Their first characters: with them, the search takes a third of the time.
    # After a slash, it is part of a path: `s3://bucket/SORT_KEY=7/rows.parquet`.
    r"(?:(?<![/A-Z0-9_])[A-Z0-9_]*?(?<!TLS)_KEY|_TOKEN|(?i:password|passwd|secret)"
    r"|(?i:access|account|api|private|secret)[_-]?(?i:key)"
    r"|(?i:access|account|admin|api|auth|bearer|bot|git(?:hub|lab)|hf|hub|metrics|node|refresh|secret|security|session)"
    # The last one is the whole name, which can be an option, or follow a line break that JSON has escaped.
    r"[_-]?(?i:token)|(?:(?<!\w)(?<!\w-)|(?<=\\[nrt]))(?i:token))"
)
# Before a colon, only fields of JSON and `repr`, whose names have quotes: prose has colons, too.
_NAME = rf"{_ENDING}(?:\\{{0,8}}[\"'] ?: ?|=)"
_QUOTED = r"(?P<quote>\\{0,8}[\"'])(?:(?!(?P=quote))(?:\\[\s\S]|[\s\S]))*+(?:(?P=quote)|\Z)"
_PUNCTUATION = r",;()\[\]{}"
_NO_SECRET = rf"(?i:null|none|true|false)(?![^\s&'\"`{_PUNCTUATION}])"
# It ends before trailing punctuation, and before the next name, because the value of that one can have quotes.
_UNQUOTED = rf"(?:[{_PUNCTUATION}]*+(?!{_NAME})(?:[^\s&'\"`{_PUNCTUATION}]|(?<=\w)['\"](?=\w)))++"
_LIST_OR_OBJECT = r"(?:\[[^\]]*+(?:\]|\Z)|\{[^}]*+(?:\}|\Z))"
_NAMED = re.compile(rf"(?P<name>{_NAME})(?:b?{_QUOTED}|{_LIST_OR_OBJECT}|(?!{_NO_SECRET}){_UNQUOTED})")
_HEADER = r"(?<![\w-])x-[a-z-]{0,40}(?:key|secret|token)"
_NAMED_KEY = re.compile(rf"(?:{_ENDING}|(?i:authorization|{_HEADER}))\Z")
# Not the `TOKEN` or the variable of an instruction.
_AUTHORIZATION = re.compile(
    r"(?i)(authorization\\{0,8}['\"]? ?[:=,] ?b?\\{0,8}['\"]?(?:bearer|basic|token) +"
    rf"|{_HEADER}\\{{0,8}}(?:['\"] ?, ?|['\"]? ?: ?)b?\\{{0,8}}['\"]?)(?!TOKEN\b|[$])[^\s'\"\\,]+"
    r"|(\bbearer +)[\w.~+/=-]{16,}"
)
_CUT_BEARER = re.compile(r"(?i)(\bbearer +)\S+\Z")
_UNTIL_LAST_URL = re.compile(r"[\s\S]*(?:://|:\\/\\/)")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
)
_WORDS = ("key", "token", "passw", "secret", "bearer", "authorization")
"""Parts of whatever the patterns above but those of URLs match, in lower case."""


_Shown = Callable[[re.Match[str]], str]
_SEARCHES: tuple[tuple[re.Pattern[str], _Shown], ...] = (
    (_PRIVATE_KEY, lambda _: HIDDEN),
    (_AUTHORIZATION, lambda found: f"{found[1] or found[2]}{HIDDEN}"),
    (_NAMED, lambda found: f"{found['name']}{found['quote'] or ''}{HIDDEN}{found['quote'] or ''}"),
)
"""Each credential that is no part of a URL, and what is shown instead."""


def redact_text(text: str) -> str:
    """`text` with its credentials hidden: `s3://KEY:SECRET@host/x` is `s3://***@host/x`."""
    return _Redaction().text(text)


def redact(value: Any) -> Any:
    """A JSON value with the credentials in it hidden, in keys as well.

    Credentials in a text that begins with a URL can contain any characters.
    """
    return _Redaction().value(value)


def redact_beginning(text: str, chars: int) -> str:
    """The first `chars` characters, redacted; also hides a credential that can extend beyond them."""
    if len(text) <= chars:
        return redact_text(text)
    beginning = text[:chars]
    # The end of a URL, and the length of a bearer token, tell whether it has credentials. Others begin with their name.
    if until_url := _UNTIL_LAST_URL.match(beginning):
        return redact_text(f"{until_url[0]}{HIDDEN}")
    return redact_text(_CUT_BEARER.sub(rf"\1{HIDDEN}", beginning))


class _Redaction:
    """The redaction of one text or value."""

    def __init__(self) -> None:
        self._examined = self._searched = 0

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            before, scheme, after = value.partition("://")
            if not scheme or not _BEFORE_SCHEME.fullmatch(before):
                return self.text(value)
            return f"{before}{scheme}{self.text(self.url(after))}"  # Prose with more URLs can follow.
        if isinstance(value, dict):
            return {self.value(key): self.field(key, one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
        return value

    def field(self, name: Any, value: Any) -> Any:
        """The value of an object's field."""
        is_named = isinstance(name, str) and _has_word(name) and _NAMED_KEY.search(name)
        return HIDDEN if is_named and value and value is not True else self.value(value)

    def text(self, text: str) -> str:
        if "://" in text or ":\\/\\/" in text:
            text = _AFTER_SCHEME.sub(lambda found: self.url(found[0]), text)
        # With a margin, so that the beginning of a credential is not cut.
        cut = _MAX_SEARCHED - self._searched + _MARGIN if self._searched < _MAX_SEARCHED else 0
        searched, rest = text[:cut], text[cut:]
        self._searched += len(searched)
        if not _has_word(searched):  # As in most texts: for a line of a log, the rest takes 25 µs.
            return text
        for pattern, shown in _SEARCHES:
            searched, is_last = _without(pattern, shown, searched)
            rest = "" if is_last else rest  # It can have the rest of that credential.
        return searched + rest

    def url(self, url: str) -> str:
        """A URL without its scheme."""
        if not _may_have_credentials(url):
            return url
        self._examined += 1
        if self._examined > _MAX_EXAMINED:
            return HIDDEN
        # It can be a list without spaces, or an fsspec chain such as `zip://a.zip::https://user:password@host/a.zip`.
        shown = "://".join(_without_user(link) if "@" in link else link for link in url.split("://", _MAX_LINKS))
        query = _BEFORE_QUERY_VALUE.search(shown)
        if query and len(shown) - query.end() > _MAX_QUERY_CHARS:
            return f"{shown[: query.end()]}{HIDDEN}"
        return _QUERY_VALUE.sub(rf"\1{HIDDEN}", shown)


def _has_word(text: str) -> bool:
    folded = text.lower()
    return any(word in folded for word in _WORDS)


def _without(pattern: re.Pattern[str], shown: _Shown, text: str) -> tuple[str, bool]:
    """`text` without these credentials, and whether one of them extends to its end."""
    end = 0

    def show(found: re.Match[str]) -> str:
        nonlocal end
        end = found.end()
        return shown(found)

    return pattern.sub(show, text), end == len(text)


def _may_have_credentials(url: str) -> bool:
    """False only if nothing is hidden, as in most URLs with `@` or `=` in their paths."""
    if "@" in url and ("://" in url or _USER_OR_PORT.match(url)):  # Each link of a chain has its own authority.
        return True
    return "=" in url and _BEFORE_QUERY_VALUE.search(url) is not None


def _without_user(link: str) -> str:
    authority = _END_OF_AUTHORITY.split(link, maxsplit=1)[0]
    user, at, host = authority.rpartition("@")
    if not _HOST.fullmatch(host) or link[len(authority) : len(authority) + 1] == "#" or "://" in link:
        # Not a host, but a part of a password with an unescaped slash or `#`. It extends to the last `@`.
        user, at, _ = link.rpartition("@")
    return f"{HIDDEN}@{link[len(user) + 1 :]}" if at else link


STORED: Mapping[str, Any] = MappingProxyType({})
"""The validation context of values from the database. They were redacted before they were stored, by the rules of the
release that stored them: an earlier one hid less."""


def _redacted(text: str, info: ValidationInfo) -> str:
    return text if info.context is STORED else redact_text(text)


Redacted = Annotated[str, AfterValidator(_redacted)]
"""Text for people. It never contains recognizable credentials, regardless of its origin."""
RedactedObject = Annotated[dict[str, Any], AfterValidator(redact)]
"""A JSON object for people, likewise."""
