"""Sessions of browsers: a cookie that stands for a token, so that the browser does not keep the token itself.

A session's value is the token's name, the time at which it expires, and a MAC under the master's signing key. It
therefore needs no table and is valid at every master of the database. The MAC covers the digest of the token's secret,
so that the session ends when the token is revoked or its rotated secret expires. Pure.
"""

import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from rolecall.master.access import Access, Known, Principal
from rolecall.spec.token import digest_of

_COOKIE = "rolecall_session"
LIFETIME = timedelta(hours=12)
_VALUE = re.compile("([a-z0-9._-]{1,63})[.]([1-9][0-9]{0,11})[.]([0-9a-f]{64})")


def cookie_name(scheme: str) -> str:
    """The name of the session's cookie for pages with this URL scheme.

    With HTTPS, browsers accept a cookie with the prefix only from this host, and not over plain HTTP. So no page of
    another host of the domain can log a user in with a foreign token.
    """
    return f"__Host-{_COOKIE}" if scheme == "https" else _COOKIE


@dataclass(frozen=True, slots=True)
class Sessions:
    """Starts and checks sessions of the tokens in `access`."""

    access: Access
    key: str
    now: Callable[[], datetime]

    def start(self, token: str) -> str | None:
        """The value of a new session's cookie; None for an invalid token."""
        if self.access.principal(token) is None:
            return None
        digest = digest_of(token)
        known = next(one for one in self.access.all_known() if one.digest == digest)
        expires = int((self.now() + LIFETIME).timestamp())
        return f"{known.principal.name}.{expires}.{self._mac(known, expires)}"

    def principal(self, cookie: str) -> Principal | None:
        """The principal of a session, or None if it is invalid or has ended."""
        found, now = _VALUE.fullmatch(cookie), self.now()
        if found is None:
            return None
        name, expires, mac = found.groups()
        if int(expires) <= now.timestamp():
            return None
        for known in self.access.all_known():
            is_valid = known.expires_at is None or known.expires_at > now
            if known.principal.name == name and is_valid and hmac.compare_digest(self._mac(known, int(expires)), mac):
                self.access.note_use(known.principal)
                return known.principal
        return None

    def _mac(self, known: Known, expires: int) -> str:
        message = f"session\n{known.principal.name}\n{expires}\n{known.digest}"
        return hmac.digest(self.key.encode(), message.encode(), "sha256").hex()
