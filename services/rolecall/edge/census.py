"""Who holds the connections of one server, and how many each may hold. Pure; no I/O.

A connection belongs to its address until one of its requests has shown a valid token, then to whoever shows one on it.
What strangers hold is taken from them for newcomers, so that connections without a token keep nobody out. What a token
holds stays, but no token holds so much that others find no room.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol


class Group(StrEnum):
    """Who shares a part of the connections."""

    STRANGERS = "strangers"
    """Connections that have shown no token, by address."""
    USERS = "users"
    """By token."""
    ADMINS = "admins"
    """By token; apart, so that users can't keep out who could revoke their tokens."""
    WORKERS = "workers"
    """Tokens of attempts, by job: its code may do with them what it likes."""
    NODES = "nodes"
    """Together: whatever there is."""


class Share(NamedTuple):
    """How many connections a group may hold."""

    each: int
    """One address, token or job of it."""
    together: int


_STRANGERS, _USERS, _ADMINS, _WORKERS = Share(256, 1024), Share(512, 1536), Share(512, 4096), Share(512, 1024)
_NODES = Share(4096, 4096)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server bears. A node needs a connection for its heartbeat, and one for each worker and its streams."""

    connections: int = 4096
    """In all. Users, workers and strangers together have less: the rest is for nodes and admins."""
    strangers: Share = _STRANGERS
    """Many nodes that start behind one NAT show their token within milliseconds."""
    users: Share = _USERS
    admins: Share = _ADMINS
    workers: Share = _WORKERS
    nodes: Share = _NODES
    head_s: float = 10.0
    """Seconds from a connection's begin, or a later request's first byte, to the end of the request's head. A TLS
    handshake, and the end of a TLS connection, may take as long.
    """
    crowded_head_s: float = 3.0
    """The same for a stranger's connection that begins while strangers hold half of what they may."""
    body_window_s: float = 30.0
    """Seconds within which a body must bring `body_bytes`, as long as the application takes it."""
    body_bytes: int = 8192
    user_body_s: float = 60.0
    """Seconds within which a user's body must be complete. Nodes and workers send files, which take their time."""
    stall_s: float = 60.0
    """Seconds in which a peer must take something of an answer that waits for it."""

    def share(self, group: Group) -> Share:
        """What the group may hold."""
        return getattr(self, group)


class Member(Protocol):
    """A connection."""

    def evict(self) -> None:
        """Close at once: the place is another's by now."""


class Holder(NamedTuple):
    """Whose a connection is."""

    group: Group
    name: str


class Excess(NamedTuple):
    """Why a connection can't be had."""

    detail: str
    own: bool
    """It is the holder who holds too many, not its group."""


@dataclass(slots=True)
class Census:
    """The connections that one server holds."""

    limits: Limits
    _of: dict[Member, Holder] = field(default_factory=dict[Member, Holder])
    _held: dict[Holder, dict[Member, None]] = field(default_factory=dict[Holder, dict[Member, None]])
    """Each holder's connections, the oldest first. No address is remembered for longer than its connections last."""
    _sizes: Counter[Group] = field(default_factory=Counter[Group])

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self._of)

    def size(self, group: Group) -> int:
        """How many a group holds."""
        return self._sizes[group]

    def admit(self, member: Member, peer: str) -> str | None:
        """Count a stranger's connection, if need be in the place of the oldest one; or say why there is no room."""
        newcomer = Holder(Group.STRANGERS, peer)
        if len(self._held.get(newcomer, ())) >= self.limits.strangers.each:
            self._evict(newcomer)
        elif self._sizes[Group.STRANGERS] >= self.limits.strangers.together or self.total >= self.limits.connections:
            if not self._sizes[Group.STRANGERS]:
                return f"{self.limits.connections} connections are open"
            self._evict(self._most_crowded())
        self._add(member, newcomer)
        return None

    def claim(self, member: Member, holder: Holder) -> Excess | None:
        """Count the connection as this holder's from now on, or say why there is no room for that."""
        before = self._of.get(member)
        if before is None or before == holder:
            return None  # It is closed already, or nothing changes.
        if excess := self._excess(before, holder):
            return excess
        self.leave(member)
        self._add(member, holder)
        return None

    def leave(self, member: Member) -> None:
        """Give the connection's place to others."""
        holder = self._of.pop(member, None)
        if holder is None:
            return
        self._sizes[holder.group] -= 1
        del self._held[holder][member]
        if not self._held[holder]:
            del self._held[holder]

    def holder(self, member: Member) -> Holder | None:
        """Whose the connection is; None for one that is closed."""
        return self._of.get(member)

    def crowds(self, member: Member) -> bool:
        """Whether the connection is a stranger's while strangers hold half of what they may."""
        holder = self._of.get(member)
        if holder is None or holder.group is not Group.STRANGERS:
            return False
        each, together = self.limits.strangers
        return 2 * len(self._held[holder]) >= each or 2 * self._sizes[Group.STRANGERS] >= together

    def _excess(self, before: Holder, holder: Holder) -> Excess | None:
        each, together = self.limits.share(holder.group)
        if len(self._held.get(holder, ())) >= each:
            return Excess(f"{each} connections of this token's are open already", own=True)
        if before.group is not holder.group and self._sizes[holder.group] >= together:
            return Excess(f"{together} connections of {holder.group} are open already", own=False)
        return None

    def _add(self, member: Member, holder: Holder) -> None:
        self._of[member] = holder
        self._held.setdefault(holder, {})[member] = None
        self._sizes[holder.group] += 1

    def _most_crowded(self) -> Holder:
        strangers = (holder for holder in self._held if holder.group is Group.STRANGERS)
        return max(strangers, key=lambda holder: len(self._held[holder]))

    def _evict(self, holder: Holder) -> None:
        """Close its oldest connection: whoever has a token has shown it by then."""
        oldest = next(iter(self._held[holder]))
        self.leave(oldest)
        oldest.evict()
