"""The inspections of running workers that users wait for. In memory only: after a restart, users ask again.

A request goes to the nodes with the answers to their heartbeats, and each node sends the answers of its workers.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rolecall.logs import about
from rolecall.master.store.records import WorkerRecord
from rolecall.spec.errors import Conflict, LimitReached
from rolecall.spec.inspection import ANSWER_BYTES, ANSWER_S, Answer, ClockReading, Inspection, Kind
from rolecall.spec.model import parse_untrusted

_TOTAL_BYTES = 64 << 20
"""The maximum size of all answers to a request. The workers of a large gang get equal shares."""
_MAX_ACTIVE = 8
"""The maximum number of requests at a time. Callers with the same request share one."""
_MAX_OF_OWNER = 4
"""The same for the jobs of one owner, whose workers may never answer."""
_TIMEOUT_S = ANSWER_S + 3.0
"""The time for a request: the worker's, and that of two calls of its node."""
_UNREACHED = f"no answer from its node within {_TIMEOUT_S:g} s"
WorkerKey = tuple[str, int, int]
"""Job, attempt, rank."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeReply:
    """A worker's answer, as its node sent it."""

    answer: Answer
    clock: ClockReading | None = None


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to some workers of an attempt."""

    kind: Kind
    owner: str
    inspection: Inspection
    missing: set[WorkerKey]
    complete: asyncio.Event
    replies: dict[int, NodeReply]
    outcome: asyncio.Task[dict[int, NodeReply]]


class Inspections:
    """The requests that are not complete; `notify` wakes the heartbeats of nodes."""

    def __init__(self, notify: Callable[..., None], timeout_s: float = _TIMEOUT_S) -> None:
        self.pending: dict[WorkerKey, Inspection] = {}
        """The requests that nodes have to pass on, by job, attempt and rank."""
        self._notify = notify
        self._timeout_s = timeout_s
        self._requests: dict[tuple[str, int], _Request] = {}

    async def ask(
        self, kind: Kind, owner: str, members: Sequence[WorkerRecord], steps: int = 1
    ) -> Mapping[int, NodeReply]:
        """Ask running workers of one attempt of a job of `owner`.

        Returns their replies by rank: bounded in time, and one for each.

        Callers that ask the same at a time share a request. Raises `LimitReached` if there are too many, and `Conflict`
        for a second profile.
        """
        if not members:
            return {}
        key = (members[0].job, members[0].attempt)
        # A worker answers one request at a time.
        while (other := self._requests.get(key)) is not None and (other.kind != kind or kind == "profile"):
            if other.kind == kind:
                raise Conflict(f"another request is starting a profile of job {key[0]}; try again")
            await asyncio.shield(other.outcome)
        request = other or self._begin(kind, owner, members, steps)
        # A caller that disconnects must not cancel the request of others.
        return await asyncio.shield(request.outcome)

    def expects(self, worker: WorkerKey, number: int) -> bool:
        """Return whether the answer to this request is awaited."""
        pending = self.pending.get(worker)
        return pending is not None and pending.id == number

    def receive(self, worker: WorkerKey, number: int, reply: NodeReply) -> None:
        """Pass on the reply of a worker. A reply that nobody awaits is ignored."""
        for request in self._requests.values():
            if request.inspection.id == number and worker in request.missing:
                request.missing.discard(worker)
                request.replies[worker[2]] = reply
                self.pending.pop(worker, None)
                if not request.missing:
                    request.complete.set()

    def _begin(self, kind: Kind, owner: str, members: Sequence[WorkerRecord], steps: int) -> _Request:
        if len(self._requests) >= _MAX_ACTIVE:
            raise LimitReached(f"the master already handles {_MAX_ACTIVE} inspections; try again in a few seconds")
        if sum(one.owner == owner for one in self._requests.values()) >= _MAX_OF_OWNER:
            raise LimitReached(
                f"{_MAX_OF_OWNER} jobs of {owner} are already being inspected; try again in a few seconds"
            )
        key = (members[0].job, members[0].attempt)
        size = max(1, min(ANSWER_BYTES, _TOTAL_BYTES // len(members)))
        inspection = Inspection(id=secrets.randbits(48) + 1, kind=kind, max_bytes=size, steps=steps)
        missing = {(*key, member.rank) for member in members}
        complete, replies = asyncio.Event(), dict[int, NodeReply]()
        outcome = asyncio.create_task(self._await(key, complete), name="inspection")
        request = self._requests[key] = _Request(kind, owner, inspection, missing, complete, replies, outcome)
        self.pending.update(dict.fromkeys(missing, inspection))
        self._notify(*{member.node for member in members})
        return request

    async def _await(self, key: tuple[str, int], complete: asyncio.Event) -> dict[int, NodeReply]:
        try:
            async with asyncio.timeout(self._timeout_s):
                await complete.wait()
        except TimeoutError:
            job, attempt = key
            extra = about("inspection_incomplete", job=job, attempt=attempt)
            _LOG.warning("an inspection of job %s is not complete", job, extra=extra)
        finally:
            request = self._requests.pop(key)
            for worker in request.missing:
                self.pending.pop(worker, None)
                request.replies[worker[2]] = NodeReply(Answer(error=_UNREACHED))
        return request.replies


def parse_answer(body: bytes) -> Answer:
    """The answer that a worker wrote, which can be anything."""
    try:
        return parse_untrusted(Answer, body)
    except ValueError as error:
        return Answer(error=f"its answer can't be read: {error}")
