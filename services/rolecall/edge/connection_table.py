"""The open connections of one server: their owners, and the limits for each. Pure; no I/O.

A connection is anonymous and belongs to its peer's address until a request on it has a valid token. Then it belongs to
that token. Anonymous connections are evicted in favor of new ones, so that clients without a token can't block others.
Authenticated connections are never evicted, but their number is limited for each owner and each group.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol


class Group(StrEnum):
    """A kind of owner. The owners of a group share one limit."""

    ANONYMOUS = "anonymous"
    """Connections without a valid token, by address."""
    USERS = "users"
    """By token."""
    ADMINS = "admins"
    """By token. Separate from users, so that users can't lock out those who can revoke their tokens."""
    WORKERS = "workers"
    """Tokens of attempts, by job, because the code of a job can use them as it likes."""
    NODES = "nodes"
    """All nodes together. They can use all connections that are free."""


class GroupLimit(NamedTuple):
    """The maximum numbers of connections of a group."""

    each: int
    """Of one owner: an address, a token or a job."""
    total: int


_ANONYMOUS, _USERS = GroupLimit(256, 1024), GroupLimit(512, 1536)
_ADMINS, _WORKERS, _NODES = GroupLimit(512, 4096), GroupLimit(512, 1024), GroupLimit(4096, 4096)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one server. A node needs one connection for heartbeats, and one for each worker and its streams."""

    connections: int = 4096
    """In total. The sum for users, workers and anonymous clients is lower: the rest is for nodes and admins."""
    anonymous: GroupLimit = _ANONYMOUS
    """Sufficient for many nodes behind one NAT, which present their tokens within milliseconds."""
    users: GroupLimit = _USERS
    admins: GroupLimit = _ADMINS
    workers: GroupLimit = _WORKERS
    nodes: GroupLimit = _NODES
    head_s: float = 10.0
    """Seconds from the start of a connection, or from the first byte of a later request, to the end of the request's
    head. Also the limit for a TLS handshake and for a TLS shutdown.
    """
    crowded_head_s: float = 3.0
    """The same for an anonymous connection that starts when anonymous connections have reached half of their limit."""
    body_window_s: float = 30.0
    """Seconds within which `body_bytes` of a body must arrive while the application reads it."""
    body_bytes: int = 8192
    user_body_s: float = 60.0
    """Seconds within which a user's body must be complete. Nodes and workers send files, which can take longer."""
    stall_s: float = 60.0
    """Seconds within which a peer must receive part of a pending response."""

    def group(self, group: Group) -> GroupLimit:
        return getattr(self, group)


class EvictableConnection(Protocol):
    """A connection that the table can close."""

    def evict(self) -> None:
        """Close immediately: the slot is already reassigned."""


class Owner(NamedTuple):
    """The client that a connection counts for."""

    group: Group
    name: str


class LimitExceeded(NamedTuple):
    """The reason why a connection is refused."""

    detail: str
    by_owner: bool
    """True if the owner exceeds its own limit, False if its group exceeds the total."""


@dataclass(slots=True)
class ConnectionTable:
    """The open connections of one server."""

    limits: ConnectionLimits
    _owners: dict[EvictableConnection, Owner] = field(default_factory=dict[EvictableConnection, Owner])
    _by_owner: dict[Owner, dict[EvictableConnection, None]] = field(
        default_factory=dict[Owner, dict[EvictableConnection, None]]
    )
    """The connections of each owner, oldest first. An address is removed with its last connection."""
    _sizes: Counter[Group] = field(default_factory=Counter[Group])

    @property
    def total(self) -> int:
        return len(self._owners)

    def admit(self, connection: EvictableConnection, address: str) -> str | None:
        """Add an anonymous connection, and evict the oldest one if necessary; returns an error if there is no room."""
        owner = Owner(Group.ANONYMOUS, address)
        if len(self._by_owner.get(owner, ())) >= self.limits.anonymous.each:
            self._evict_oldest(owner)
        elif self._sizes[Group.ANONYMOUS] >= self.limits.anonymous.total or self.total >= self.limits.connections:
            if not self._sizes[Group.ANONYMOUS]:
                return f"{self.limits.connections} connections are open"
            anonymous = (one for one in self._by_owner if one.group is Group.ANONYMOUS)
            self._evict_oldest(max(anonymous, key=lambda one: len(self._by_owner[one])))
        self._add(connection, owner)
        return None

    def claim(self, connection: EvictableConnection, owner: Owner) -> LimitExceeded | None:
        """Count the connection for `owner` from now on, unless that exceeds a limit."""
        current = self._owners.get(connection)
        if current is None or current == owner:
            return None  # The connection is already closed, or its owner doesn't change.
        if exceeded := self._exceeded(current, owner):
            return exceeded
        self.remove(connection)
        self._add(connection, owner)
        return None

    def remove(self, connection: EvictableConnection) -> None:
        """Remove a connection, if the table has it."""
        owner = self._owners.pop(connection, None)
        if owner is None:
            return
        self._sizes[owner.group] -= 1
        del self._by_owner[owner][connection]
        if not self._by_owner[owner]:
            del self._by_owner[owner]

    def owner(self, connection: EvictableConnection) -> Owner | None:
        """The owner of a connection, or None if it is closed."""
        return self._owners.get(connection)

    def is_crowded(self, connection: EvictableConnection) -> bool:
        """Return whether the connection is anonymous, and anonymous connections have reached half of a limit."""
        owner = self._owners.get(connection)
        if owner is None or owner.group is not Group.ANONYMOUS:
            return False
        each, total = self.limits.anonymous
        return 2 * len(self._by_owner[owner]) >= each or 2 * self._sizes[Group.ANONYMOUS] >= total

    def _exceeded(self, current: Owner, owner: Owner) -> LimitExceeded | None:
        each, total = self.limits.group(owner.group)
        if len(self._by_owner.get(owner, ())) >= each:
            return LimitExceeded(f"{each} connections of this token's are open already", by_owner=True)
        if current.group is not owner.group and self._sizes[owner.group] >= total:
            return LimitExceeded(f"{total} connections of {owner.group} are open already", by_owner=False)
        return None

    def _add(self, connection: EvictableConnection, owner: Owner) -> None:
        self._owners[connection] = owner
        self._by_owner.setdefault(owner, {})[connection] = None
        self._sizes[owner.group] += 1

    def _evict_oldest(self, owner: Owner) -> None:
        # The oldest has had the most time to present a token, so its client probably has none.
        oldest = next(iter(self._by_owner[owner]))
        self.remove(oldest)
        oldest.evict()
