"""Which token is whose: from what a call presents to a principal. Pure; no I/O, no framework.

Secrets are 256 random bits, so a table of their plain SHA-256 digests is enough. A slow or salted hash protects secrets
that can be guessed, such as passwords; here it would only make each call slower.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from rolecall.spec.access import ADMIN, METRICS, NODE, Limits, Scope, TokenDocument

_PREFIX = "rc_"
_BYTES = 32


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls: the name of a token, and what it may do."""

    name: str
    scopes: frozenset[Scope]
    limits: Limits = field(default_factory=Limits)

    @property
    def reads_all(self) -> bool:
        """Whether it sees the jobs of all owners."""
        return not self.scopes.isdisjoint({Scope.READ, Scope.ADMIN})

    def sees(self, owner: str) -> bool:
        """Whether it may look at the jobs of `owner`."""
        return self.reads_all or (Scope.SUBMIT in self.scopes and owner == self.name)

    def controls(self, owner: str) -> bool:
        """Whether it may change the jobs of `owner`."""
        return Scope.ADMIN in self.scopes or (Scope.SUBMIT in self.scopes and owner == self.name)


@dataclass(frozen=True, slots=True)
class Known:
    """A valid secret, as its digest."""

    digest: str
    principal: Principal
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Scrapes:
    """Calls of `/metrics` that used a token which opens everything, since this master's start."""

    count: int = 0
    token: str = ""
    """The name of the last one's token."""
    address: str = ""
    """Where the last one came from."""


class Access:
    """The secrets that are valid. `replace` follows the database; the built-in tokens stay."""

    def __init__(self, built_in: Iterable[Known], now: Callable[[], datetime]) -> None:
        self._now = now
        self._built_in = {known.digest: known for known in built_in}
        self._known = dict(self._built_in)
        self._used: dict[str, datetime] = {}
        self.scrapes = Scrapes()

    def principal(self, presented: str) -> Principal | None:
        """Whose token this is; None if it is nobody's, or no longer valid.

        The time that this takes says nothing about a valid token: it is looked up by its digest, of which a guess
        can't choose a part, and compared in constant time.
        """
        digest = digest_of(presented)
        known = self._known.get(digest)
        now = self._now()
        if known is None or not hmac.compare_digest(known.digest, digest):
            return None
        if known.expires_at is not None and known.expires_at <= now:
            return None
        self._used[known.principal.name] = now
        return known.principal

    def replace(self, known: Iterable[Known]) -> None:
        """Take these for all secrets that there are besides the built-in ones."""
        self._known = {one.digest: one for one in known} | self._built_in

    def note_scrape(self, caller: Principal, address: str) -> None:
        """Note a call of `/metrics`: a token for everything lies where one for metrics would do."""
        if Scope.ADMIN in caller.scopes:
            self.scrapes = Scrapes(self.scrapes.count + 1, caller.name, address)

    @property
    def used(self) -> Mapping[str, datetime]:
        """When each token was last used with this master."""
        return self._used

    @property
    def built_in(self) -> list[TokenDocument]:
        """The built-in tokens, as users see them."""
        return [
            TokenDocument(
                name=known.principal.name,
                scopes=sorted(known.principal.scopes),
                built_in=True,
                last_used_at=self._used.get(known.principal.name),
            )
            for known in self._built_in.values()
        ]

    @property
    def limits(self) -> dict[str, Limits]:
        """The limits of each token. The jobs of one that was revoked go on without."""
        return {known.principal.name: known.principal.limits for known in self._known.values()}


def built_in(admin: str, node: str, metrics: str | None) -> list[Known]:
    """The secrets that the master's settings hold."""
    given = {ADMIN: (admin, Scope.ADMIN), NODE: (node, Scope.NODE), METRICS: (metrics, Scope.METRICS)}
    return [
        Known(digest_of(secret), Principal(name, frozenset({scope})))
        for name, (secret, scope) in given.items()
        if secret is not None
    ]


def new_secret() -> str:
    """A secret for a token. Scanners for leaked secrets know it by its prefix."""
    return _PREFIX + secrets.token_urlsafe(_BYTES)


def digest_of(secret: str) -> str:
    """What is stored of a secret, and what a presented one is looked up by."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
