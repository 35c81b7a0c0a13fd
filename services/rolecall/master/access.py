"""The mapping from presented tokens to principals. Pure; no I/O, no framework."""

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from rolecall.spec.access import ADMIN, METRICS, NODE, Limits, Scope, TokenDocument
from rolecall.spec.token import digest_of


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller: the name of a token, its scopes and its limits."""

    name: str
    scopes: frozenset[Scope]
    limits: Limits = field(default_factory=Limits)

    @property
    def reads_all(self) -> bool:
        """True if it can see the jobs of all owners."""
        return not self.scopes.isdisjoint({Scope.READ, Scope.ADMIN})

    def sees(self, owner: str) -> bool:
        """Return whether it can see the jobs of `owner`."""
        return self.reads_all or (Scope.SUBMIT in self.scopes and owner == self.name)

    def controls(self, owner: str) -> bool:
        """Return whether it can change the jobs of `owner`."""
        return Scope.ADMIN in self.scopes or (Scope.SUBMIT in self.scopes and owner == self.name)


@dataclass(frozen=True, slots=True)
class Known:
    """A valid secret, as its digest."""

    digest: str
    principal: Principal
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Scrapes:
    """Calls of `/metrics` with an admin token since this master's start."""

    count: int = 0
    token: str = ""
    address: str = ""
    """The client's address of the last call, as `token` is its token's name."""


class Access:
    """The valid secrets: those of the built-in tokens, and those of the database, which `replace` sets."""

    def __init__(self, built_in: Iterable[Known], now: Callable[[], datetime]) -> None:
        self._now = now
        self._built_in = {known.digest: known for known in built_in}
        self._known = dict(self._built_in)
        self.used: dict[str, datetime] = {}
        """The time of the last use of each token with this master."""
        self.scrapes = Scrapes()

    def principal(self, presented: str) -> Principal | None:
        """The principal of a token, or None if it is unknown or expired.

        The duration reveals nothing about valid tokens: the lookup is by digest, no part of which a guess can choose,
        and the comparison takes constant time.
        """
        digest = digest_of(presented)
        known = self._known.get(digest)
        now = self._now()
        if known is None or not hmac.compare_digest(known.digest, digest):
            return None
        if known.expires_at is not None and known.expires_at <= now:
            return None
        self.note_use(known.principal)
        return known.principal

    def note_use(self, caller: Principal) -> None:
        """Record that a call used the token of `caller` now."""
        self.used[caller.name] = self._now()

    def all_known(self) -> Iterable[Known]:
        """All secrets, including those that have expired since the last `replace`."""
        return self._known.values()

    def known_for(self, scope: Scope) -> Iterable[Known]:
        """The secrets with only this scope, without those of the built-in tokens."""
        named = (known for digest, known in self._known.items() if digest not in self._built_in)
        return (known for known in named if known.principal.scopes == frozenset({scope}))

    def replace(self, known: Iterable[Known]) -> None:
        """Replace all secrets except the built-in ones."""
        self._known = {one.digest: one for one in known} | self._built_in

    def note_scrape(self, caller: Principal, address: str) -> None:
        """Count a call of `/metrics` if it used an admin token where a metrics token is sufficient."""
        if Scope.ADMIN in caller.scopes:
            self.scrapes = Scrapes(self.scrapes.count + 1, caller.name, address)

    @property
    def built_in(self) -> list[TokenDocument]:
        return [
            TokenDocument(
                name=known.principal.name,
                scopes=sorted(known.principal.scopes),
                built_in=True,
                last_used_at=self.used.get(known.principal.name),
            )
            for known in self._built_in.values()
        ]

    @property
    def admins(self) -> set[str]:
        """The names of the tokens with the scope `admin`."""
        return {known.principal.name for known in self._known.values() if Scope.ADMIN in known.principal.scopes}

    @property
    def limits(self) -> dict[str, Limits]:
        """The limits of each token. Jobs of a revoked token continue without limits."""
        return {known.principal.name: known.principal.limits for known in self._known.values()}


def built_in(admin: str, node: str, metrics: str | None) -> list[Known]:
    given = {ADMIN: (admin, Scope.ADMIN), NODE: (node, Scope.NODE), METRICS: (metrics, Scope.METRICS)}
    return [
        Known(digest_of(secret), Principal(name, frozenset({scope})))
        for name, (secret, scope) in given.items()
        if secret is not None
    ]
