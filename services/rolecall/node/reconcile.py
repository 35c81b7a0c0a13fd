"""The actions that make the running workers the desired ones. Pure: no I/O, no clock.

Reconciliation is level-triggered: an action that was lost or did not help follows again from the next comparison.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rolecall.spec.inspection import Inspection
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.state import StopMode
from rolecall.spec.wire import DesiredWorker


class Key(NamedTuple):
    """The identity of a worker. The same rank of the next attempt is another worker."""

    job: str
    attempt: int
    rank: int

    @classmethod
    def of(cls, launch: WorkerLaunch) -> "Key":
        return cls(launch.job, launch.attempt, launch.worker.rank)

    def __str__(self) -> str:
        return f"{self.job}/{self.attempt}/{self.rank}"


@dataclass(frozen=True, slots=True)
class Actual:
    """The state of a worker on this node."""

    ended: bool = False
    killed: bool = False
    asked_s: float | None = None
    """The seconds since it was asked to stop."""
    joined: bool = False
    """True if it has joined its gang, so that it checks for stop requests."""
    has_port: bool = False
    """True if it has the gang's port."""
    inspection: int = 0
    """The id of its last inspection; 0 before the first."""


@dataclass(frozen=True)
class _OfNewWorker:
    launch: WorkerLaunch

    @property
    def key(self) -> Key:
        return Key.of(self.launch)


class Start(_OfNewWorker):
    """Create the worker's folder and fork it."""


class Decline(_OfNewWorker):
    """Report the worker as stopped, because its gang stops before it was started."""


@dataclass(frozen=True, slots=True)
class SendPort:
    """Send the gang's port to the worker."""

    key: Key
    port: int


@dataclass(frozen=True, slots=True)
class Inspect:
    """Send a request to the running worker."""

    key: Key
    inspection: Inspection


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the worker to stop between two steps."""

    key: Key
    mode: StopMode


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill the worker's process group."""

    key: Key


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete the folder of a worker whose end the master has recorded."""

    key: Key


Action = Start | Decline | SendPort | Inspect | Ask | Kill | Forget


def actions(
    desired: Sequence[DesiredWorker], actual: Mapping[Key, Actual], grace_s: float, spared: Collection[Key] = ()
) -> list[Action]:
    """The actions that lead from `actual` to `desired`. Workers are killed `grace_s` seconds after a stop request.

    The entries of the workers in `spared` can't be read by this release: they continue, but are not started.
    """
    by_key = {Key.of(worker.launch): worker for worker in desired}
    found: list[Action] = []
    for key, worker in actual.items():
        if key in by_key:
            inspection, over = by_key[key].inspection, worker.ended or worker.killed
            if inspection is not None and inspection.id != worker.inspection and not over:
                found.append(Inspect(key, inspection))
            found += _for_running(key, by_key[key], worker, grace_s)
        elif worker.ended and key not in spared:
            found.append(Forget(key))
        elif not worker.killed and key not in spared:
            found.append(Kill(key))
    missing = [worker for key, worker in by_key.items() if key not in actual]
    return [*found, *(Start(one.launch) if one.stop is None else Decline(one.launch) for one in missing)]


def _for_running(key: Key, desired: DesiredWorker, actual: Actual, grace_s: float) -> list[Action]:
    if actual.ended or actual.killed:
        return []
    if (mode := desired.stop) is not None:
        if not mode.is_graceful or not actual.joined:
            return [Kill(key)]  # Without the gang, it has nothing to save and would wait for workers that stop.
        if actual.asked_s is None:
            return [Ask(key, mode)]
        return [Kill(key)] if actual.asked_s >= grace_s else []
    port = desired.launch.rendezvous_port
    return [SendPort(key, port)] if port is not None and not actual.has_port else []
