"""The agent answers observers that ask what to do: many questions, one forward pass.

A question waits until enough observers have asked or its deadline has passed, whichever comes first, so that a slow
observer never holds the others.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import rpc

from rolecall.workloads.reinforce.model import Policy
from rolecall.workloads.reinforce.trajectory import Decisions, Trace


@dataclass(frozen=True, slots=True)
class Question:
    """What one observer's environments show."""

    observer: int
    observations: Tensor
    """[n, ...], raw."""
    answer: torch.futures.Future[Tensor]
    """The actions [n, ...] as the environments take them."""


# RPC handlers have no other way to the agent than a name in its module.
_questions: queue.SimpleQueue[Question | None] = queue.SimpleQueue()


@rpc.functions.async_execution
def act(observer: int, observations: Tensor) -> torch.futures.Future[Tensor]:
    """Called by an observer: what its environments should do."""
    answer: torch.futures.Future[Tensor] = torch.futures.Future()
    _questions.put(Question(observer, observations, answer))
    return answer


class Inference:
    """Decides with a copy of the policy, so that the agent may learn meanwhile, and remembers what it decided."""

    def __init__(self, policy: Policy, device: torch.device, enough: Callable[[], int], deadline_s: float) -> None:
        """`enough` says how many questions need not wait for more."""
        self._policy = policy
        self._device = device
        self._enough = enough
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._traces: dict[int, Trace] = {}
        self._serving: Future[None] | None = None

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answer from a thread of its own as long as the body runs."""
        with ThreadPoolExecutor(1, "inference") as executor:
            self._serving = executor.submit(self._serve)
            try:
                yield
            finally:
                _questions.put(None)

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._serving is not None and self._serving.done():
            self._serving.result()

    def use(self, weights: dict[str, Tensor]) -> None:
        """Decide with these weights from now on."""
        with self._lock:
            self._policy.load_state_dict(weights)

    def begin(self, observer: int) -> None:
        """Forget what this observer did so far: its next trajectory begins."""
        self._traces[observer] = Trace()

    def decisions(self, observer: int) -> Decisions:
        """What was decided for this observer since its trajectory began."""
        return self._traces[observer].decisions()

    def _serve(self) -> None:
        while (first := _questions.get()) is not None:
            questions = self._gathered(first)
            self._answer(questions)

    def _gathered(self, first: Question) -> list[Question]:
        """The first question and those that come in time."""
        deadline = time.monotonic() + self._deadline_s
        questions = [first]
        while len(questions) < self._enough():
            try:
                question = _questions.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if question is None:
                _questions.put(None)
                break
            questions.append(question)
        return questions

    def _answer(self, questions: list[Question]) -> None:
        counts = [len(question.observations) for question in questions]
        columns = self._decide(torch.cat([question.observations for question in questions]))
        parts = zip(*(column.split(counts) for column in columns), strict=True)
        for question, (actions, log_probs, playable) in zip(questions, parts, strict=True):
            self._traces[question.observer].add(question.observations, actions, log_probs)
            question.answer.set_result(playable)

    @torch.no_grad()
    def _decide(self, observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with self._lock:
            actions, log_probs = self._policy.decide(observations.to(self._device))
            playable = self._policy.head.playable(actions)
        return actions.cpu(), log_probs.cpu(), playable.cpu()
