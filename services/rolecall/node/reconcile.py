"""What to do so that the workers that run become those that should. Pure: no I/O, no clock.

Level-triggered: an action that was lost, or did not help, follows again from the next comparison.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.state import StopMode
from rolecall.spec.wire import DesiredWorker


class Key(NamedTuple):
    """Names a worker: the same rank of the next attempt is another worker."""

    job: str
    attempt: int
    rank: int

    @classmethod
    def of(cls, launch: WorkerLaunch) -> "Key":
        """The name of the worker that `launch` is for."""
        return cls(launch.job, launch.attempt, launch.worker.rank)

    def __str__(self) -> str:
        return f"{self.job}/{self.attempt}/{self.rank}"


@dataclass(frozen=True, slots=True)
class Actual:
    """What reconciliation must know about a worker that the node has."""

    ended: bool = False
    killed: bool = False
    asked_s: float | None = None
    """Seconds since it was asked to leave."""
    joined: bool = False
    """Whether it is part of its gang, so that it looks whether it is asked to leave."""
    has_port: bool = False
    """Whether it was told, or told us, the gang's port."""


@dataclass(frozen=True, slots=True)
class Start:
    """Make the worker's folder and fork it."""

    launch: WorkerLaunch


@dataclass(frozen=True, slots=True)
class Decline:
    """Its gang is stopping before it was started: report it as stopped."""

    launch: WorkerLaunch


@dataclass(frozen=True, slots=True)
class TellPort:
    """Let it join: rank 0 listens."""

    key: Key
    port: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask it to leave between two steps."""

    key: Key
    mode: StopMode


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL its process group."""

    key: Key


@dataclass(frozen=True, slots=True)
class Forget:
    """The master has heard of its end: delete its folder."""

    key: Key


Action = Start | Decline | TellPort | Ask | Kill | Forget


def actions(
    desired: Sequence[DesiredWorker], actual: Mapping[Key, Actual], grace_s: float, spared: Collection[Key] = ()
) -> list[Action]:
    """The actions that lead from `actual` to `desired`; a worker that was asked to leave is killed after `grace_s`.

    Those of `spared` are wanted, but this release can't read how: they go on if they run, and are not started.
    """
    wanted = {Key.of(worker.launch): worker for worker in desired}
    found: list[Action] = []
    for key, have in actual.items():
        if key not in wanted and key not in spared:
            found += _unwanted(key, have)
    for key, worker in wanted.items():
        found += _running(key, worker, actual[key], grace_s) if key in actual else _missing(worker)
    return found


def _unwanted(key: Key, have: Actual) -> list[Action]:
    if have.ended:
        return [Forget(key)]
    return [] if have.killed else [Kill(key)]


def _missing(worker: DesiredWorker) -> list[Action]:
    return [Start(worker.launch)] if worker.stop is None else [Decline(worker.launch)]


def _running(key: Key, worker: DesiredWorker, have: Actual, grace_s: float) -> list[Action]:
    if have.ended or have.killed:
        return []
    if worker.stop is not None:
        return _stopping(key, worker.stop, have, grace_s)
    port = worker.launch.rendezvous_port
    return [TellPort(key, port)] if port is not None and not have.has_port else []


def _stopping(key: Key, mode: StopMode, have: Actual, grace_s: float) -> list[Action]:
    if not mode.is_graceful or not have.joined:
        return [Kill(key)]  # Who has not joined has nothing to save, and would only wait for those who left.
    if have.asked_s is None:
        return [Ask(key, mode)]
    return [Kill(key)] if have.asked_s >= grace_s else []
