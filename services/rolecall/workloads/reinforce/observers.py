"""The agent's view of its observers: who is left, who is at work, and what they answer."""

import math
import queue
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch.distributed import rpc

from rolecall.runtime.context import worker_name
from rolecall.spec.errors import PeerLost
from rolecall.spec.role import Role
from rolecall.workloads.reinforce import observer
from rolecall.workloads.reinforce.observer import Evaluate, Play, Played, Weights
from rolecall.workloads.reinforce.trajectory import Outcomes

_LOOK_EVERY_S = 0.25
_DISMISS_S = 5.0


class Observers:
    """Gives orders and gathers what comes of them. An observer that is lost is told of and no longer asked."""

    def __init__(self, count: int, least: int, tell: Callable[[str], None], look: Callable[[], None]) -> None:
        """`tell` makes a sentence known; `look` is called a few times a second while waiting, and may raise."""
        self.left = list(range(count))
        self._wished = count
        self._least = least
        self._tell = tell
        self._look = look
        self._working: dict[int, Play | Evaluate] = {}
        self._played: dict[int, Played] = {}
        self._evaluated: dict[int, Played] = {}
        self._answers: queue.SimpleQueue[tuple[int, torch.futures.Future[Any]]] = queue.SimpleQueue()

    @property
    def at_work(self) -> int:
        """How many have an order and have not answered it."""
        return len(self._working)

    @property
    def idle(self) -> list[int]:
        """Those that have no order."""
        return [rank for rank in self.left if rank not in self._working]

    def order(self, rank: int, order: Play | Evaluate) -> None:
        """Have an idle observer carry out an order."""
        self._working[rank] = order
        # No timeout: an episode takes as long as it takes, and an observer that dies closes its connection.
        future = rpc.rpc_async(_name(rank), observer.carry_out, args=(order,), timeout=0)
        future.add_done_callback(lambda done: self._answers.put((rank, done)))

    def gather(self, share: float) -> dict[int, Played]:
        """Wait until this share of the observers that are left has played; what they and faster ones played, by number.

        Raises `PeerLost` when fewer observers are left than the job wants at least.
        """
        while len(self._played) < math.ceil(share * len(self.left)) or not self._answers.empty():
            self._take_answer()
        played, self._played = self._played, {}
        return played

    def evaluate(self, seeds: list[int], weights: Weights) -> list[Outcomes]:
        """Have a whole episode played for every seed, by all observers that are idle; the seeds of lost ones anew.

        In the order of the seeds as long as none is lost. Raises `PeerLost` as `gather` does.
        """
        outcomes: list[Outcomes] = []
        while seeds:
            while not self.idle:
                self._take_answer()
            shares = _shares(seeds, self.idle)
            for rank, share in shares.items():
                self.order(rank, Evaluate(share, weights))
            while any(rank in self._working for rank in shares):
                self._take_answer()
            outcomes += [self._evaluated[rank].outcomes for rank in sorted(self._evaluated)]
            seeds = [seed for rank, share in shares.items() if rank not in self._evaluated for seed in share]
            self._evaluated = {}
        return outcomes

    def dismiss(self, *, stopped: bool) -> None:
        """Let all observers leave."""
        for farewell in [
            rpc.rpc_async(_name(rank), observer.dismiss, (stopped,), timeout=_DISMISS_S) for rank in self.left
        ]:
            # An observer may be gone before its answer is out.
            with suppress(RuntimeError):
                farewell.wait()

    def _take_answer(self) -> None:
        """Wait for one more answer, and put it where it belongs; an observer that fails to answer is lost."""
        rank, future = self._next()
        order = self._working.pop(rank)
        try:
            played = future.wait()
        except RuntimeError as error:
            self._lose(rank, error)
            return
        (self._played if isinstance(order, Play) else self._evaluated)[rank] = played

    def _next(self) -> tuple[int, torch.futures.Future[Any]]:
        while True:
            self._look()
            try:
                return self._answers.get(timeout=_LOOK_EVERY_S)
            except queue.Empty:
                continue

    def _lose(self, rank: int, error: RuntimeError) -> None:
        self.left.remove(rank)
        lost = f"{_name(rank)} is lost ({_first_line(error)})"
        if len(self.left) < self._least:
            raise PeerLost(
                f"{lost}: {len(self.left)} of {self._wished} observers are left, and the job wants {self._least}"
            )
        self._tell(f"{lost}; going on with {len(self.left)} of {self._wished} observers")


def _shares(seeds: list[int], ranks: list[int]) -> dict[int, tuple[int, ...]]:
    """The seeds in as many pieces as there are ranks, their lengths equal or one apart; none for a rank without any."""
    size, longer = divmod(len(seeds), len(ranks))
    bounds = [index * size + min(index, longer) for index in range(len(ranks) + 1)]
    pieces = {rank: tuple(seeds[bounds[i] : bounds[i + 1]]) for i, rank in enumerate(ranks)}
    return {rank: piece for rank, piece in pieces.items() if piece}


def _name(rank: int) -> str:
    return worker_name(Role.OBSERVER, rank)


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().partition("\n")[0]
