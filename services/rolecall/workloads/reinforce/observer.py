"""An observer plays its environments as the agent says, until the agent dismisses it."""

import threading
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future

from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.runtime.remote import Mailbox
from rolecall.spec.errors import Stopped
from rolecall.spec.role import Role
from rolecall.workloads.reinforce import environments, inference
from rolecall.workloads.reinforce.collector import Collector, Decide
from rolecall.workloads.reinforce.learner import new_policy
from rolecall.workloads.reinforce.params import Params
from rolecall.workloads.reinforce.seeds import Stream, seed_of, seeds_of
from rolecall.workloads.reinforce.trajectory import Decisions, Outcomes, Trace

AGENT = worker_name(Role.TRAINER, 0)
Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Play:
    """An order to play one update's share."""

    update: int
    restart: bool
    """Begin with new episodes."""
    weights: Weights | None
    """What to decide with; without weights the agent is asked at every step."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """An order to play one whole episode for each seed."""

    seeds: tuple[int, ...]
    weights: Weights


@dataclass(frozen=True, slots=True)
class Played:
    """An order carried out."""

    decisions: Decisions | None
    """None where the agent decided, who knows them."""
    outcomes: Outcomes


class _Dismissed(Exception):
    """There is no more use for what this observer does."""


_orders: Mailbox[Play | Evaluate | None, Played | None] = Mailbox()
_dismissed = threading.Event()
_stopped = threading.Event()


@rpc.functions.async_execution
def carry_out(order: Play | Evaluate) -> Future[Played | None]:
    """Called by the agent: play, and tell what came of it."""
    return _orders.post(order)


def dismiss(stopped: bool) -> None:
    """Called by the agent: leave, even in the middle of an order; `stopped` if the job is not done."""
    if stopped:
        _stopped.set()
    _dismissed.set()
    _orders.post(None)


def run(context: WorkerContext[Params]) -> None:
    """Carry out orders until dismissed."""
    observer = _Observer(context)
    try:
        while True:
            _orders.serve(observer.carry_out)
    except _Dismissed:
        if _stopped.is_set():
            raise Stopped("left with the agent, as asked") from None


class _Observer:
    """One observer's environments and, where it decides by itself, its copy of the policy."""

    def __init__(self, context: WorkerContext[Params]) -> None:
        self._params = context.params
        self._rank = context.role_rank
        self._device = context.device
        self._policy = new_policy(self._params, environments.describe(self._params.environment)).to(self._device)
        self._training = self._collector(self._params.environments)
        self._judging: dict[int, Collector] = {}

    def carry_out(self, order: Play | Evaluate | None) -> Played | None:
        """What came of one order."""
        match order:
            case Play():
                return self._play(order)
            case Evaluate():
                return self._evaluate(order)
            case None:
                raise _Dismissed

    def _play(self, order: Play) -> Played:
        place = (self._rank, order.update)
        if order.restart or self._params.algorithm.name == "reinforce":
            self._training.restart(self._seeds(place))
        if order.weights is None:
            return Played(None, self._trajectory(self._ask))
        self._policy.load_state_dict(order.weights)
        torch.manual_seed(seed_of(self._params.seed, Stream.ACTIONS, *place))
        trace = Trace()
        outcomes = self._trajectory(lambda observations: self._draw(observations, trace))
        return Played(trace.decisions(), outcomes)

    def _trajectory(self, decide: Decide) -> Outcomes:
        algorithm = self._params.algorithm
        if algorithm.name == "reinforce":
            return self._training.episodes(decide)
        return self._training.steps(decide, algorithm.steps)

    def _evaluate(self, order: Evaluate) -> Played:
        self._policy.load_state_dict(order.weights)
        torch.manual_seed(seed_of(self._params.seed, Stream.ACTIONS, order.seeds[0]))
        count = len(order.seeds)
        if count not in self._judging:  # Shares stay the same while no observer is lost: few sets are kept.
            self._judging[count] = self._collector(count, loop=True)
        self._judging[count].restart(list(order.seeds))
        return Played(None, self._judging[count].episodes(self._judge))

    @torch.inference_mode()
    def _draw(self, observations: Tensor, trace: Trace) -> Tensor:
        actions, log_probs = self._policy.decide(observations.to(self._device))
        trace.add(observations, actions.cpu(), log_probs.cpu())
        return self._policy.head.playable(actions)

    @torch.inference_mode()
    def _judge(self, observations: Tensor) -> Tensor:
        outputs = self._policy.outputs(observations.to(self._device))
        head = self._policy.head
        return head.playable(head.mode(outputs) if self._params.evaluation.deterministic else head.sample(outputs))

    def _ask(self, observations: Tensor) -> Tensor:
        try:
            return rpc.rpc_sync(AGENT, inference.act, args=(self._rank, observations))
        except RuntimeError:
            _require_use()  # The agent may have left with the question in hand.
            raise

    def _seeds(self, place: tuple[int, int]) -> list[int] | int:
        """Of each environment; those of an own vector implementation share one."""
        seeds = seeds_of(self._params.seed, Stream.ENVIRONMENTS, *place, count=self._params.environments)
        return seeds if self._params.environment.vectorization == "loop" else seeds[0]

    def _collector(self, count: int, *, loop: bool = False) -> Collector:
        """`loop` where every episode has a seed of its own, which an own vector implementation does not take."""
        changes = {"vectorization": "loop"} if loop else {}
        environment = self._params.environment.model_copy(update=changes)
        return Collector(environments.make_vector(environment, count), _require_use)


def _require_use() -> None:
    if _dismissed.is_set():
        raise _Dismissed
