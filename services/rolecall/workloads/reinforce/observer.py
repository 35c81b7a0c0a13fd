# pyright: standard
"""An observer collects rollouts on the agent's requests, until the agent shuts it down."""

from functools import cached_property

import torch
from torch import Tensor

from rolecall.kit import Role, Stopped
from rolecall.kit.declarations import ENV_STEPS
from rolecall.kit.environments import creation, inference
from rolecall.kit.environments.rollouts import ActFn, AgentOutputs, Collector, EnvOutputs
from rolecall.kit.worker import WorkerContext, call, measurements, shared, worker_name
from rolecall.workloads.reinforce import remote
from rolecall.workloads.reinforce.build import RandomStream, new_policy, outputs_of, seed_of, seeds_of
from rolecall.workloads.reinforce.params import Params
from rolecall.workloads.reinforce.remote import (
    CollectRollout,
    RolloutResult,
    RunEpisode,
    RunEvaluation,
    ShutDown,
    check_shutdown,
)

AGENT = worker_name(Role.TRAINER, 0)

_Step = tuple[Tensor, Tensor, Tensor]
"""The observations [k, ...], actions [k, ...] and network outputs [k, outputs] of one step of k environments."""


def run(context: WorkerContext[Params]) -> None:
    """Serve requests until the agent shuts this observer down."""
    observer = _Observer(context)
    try:
        while True:
            remote.mailbox.answer_one(lambda request: shared(observer.execute(request), AGENT))
    except ShutDown:
        if remote.job_stopped.is_set():
            raise Stopped("stopped with the agent, as requested") from None


class _Observer:
    """One observer's environments, and its copy of the policy."""

    def __init__(self, context: WorkerContext[Params]) -> None:
        self._params = context.params
        self._rank = context.role_rank
        self._device = context.device
        self._policy = new_policy(self._params, creation.describe(self._params.environment)).to(self._device)
        self._outputs = outputs_of(self._policy)
        self._timeline = context.timeline
        self._eval_collectors: dict[int, Collector] = {}

    def execute(self, request: CollectRollout | RunEpisode | RunEvaluation | None) -> RolloutResult | None:
        match request:
            case CollectRollout():
                with self._timeline.step(request.update):
                    return self._run_rollout(request)
            case RunEpisode():
                return self._run_episode(request)
            case RunEvaluation():
                return self._run_evaluation(request)
            case None:
                raise ShutDown

    @cached_property
    def _collector(self) -> Collector:
        return self._make_collector(self._params.environments)

    def _run_rollout(self, request: CollectRollout) -> RolloutResult:
        key = (self._rank, request.update)
        if request.reset or self._params.algorithm.name == "reinforce":
            count, vectorization = self._params.environments, self._params.environment.vectorization
            seeds = seeds_of(self._params.seed, RandomStream.ENVIRONMENTS, *key, count=count)
            # A vector implementation takes a single seed.
            self._collector.reset(seeds if vectorization == "loop" else seeds[0])
        if request.weights is None:
            return RolloutResult(None, self._run_environments(self._request_actions))
        self._policy.load_state_dict(request.weights)
        torch.manual_seed(seed_of(self._params.seed, RandomStream.ACTIONS, *key))
        steps: list[_Step] = []
        env_outputs = self._run_environments(lambda observations: self._sample(observations, steps))
        return RolloutResult(self._agent_outputs(steps), env_outputs)

    def _run_episode(self, request: RunEpisode) -> None:
        try:
            request.run()
        except RuntimeError:
            check_shutdown()  # The agent may have left with a call pending.
            raise

    def _run_environments(self, act: ActFn) -> EnvOutputs:
        """One rollout, a span `rollout` around the spans `act` and `step` of each step of the environments."""
        algorithm = self._params.algorithm
        with self._timeline.span("rollout"):
            if algorithm.name == "reinforce":
                found = self._collector.collect_episodes(act)
            else:
                found = self._collector.collect_steps(act, algorithm.steps)
        measurements.add(ENV_STEPS, int(found.valid.sum()))
        return found

    def _run_evaluation(self, request: RunEvaluation) -> RolloutResult:
        self._policy.load_state_dict(request.weights)
        self._policy.eval()
        torch.manual_seed(seed_of(self._params.seed, RandomStream.ACTIONS, request.seeds[0]))
        count = len(request.seeds)
        # The number of seeds changes only if an observer is lost, so few collectors are kept.
        if count not in self._eval_collectors:
            self._eval_collectors[count] = self._make_collector(count, loop=True)
        with self._timeline.span("evaluate", "evaluation"):
            self._eval_collectors[count].reset(list(request.seeds))
            env_outputs = self._eval_collectors[count].collect_episodes(self._act)
        self._policy.train()
        return RolloutResult(None, env_outputs)

    @torch.inference_mode()
    def _sample(self, observations: Tensor, steps: list[_Step]) -> Tensor:
        with self._timeline.span("act"):
            outputs = self._outputs(observations.to(self._device))
            actions = self._policy.head.sample(outputs)
        steps.append((observations, actions, outputs))
        return self._policy.head.to_env_actions(actions)

    @torch.no_grad()
    def _agent_outputs(self, steps: list[_Step]) -> AgentOutputs:
        """The outputs of all steps, whose log-probabilities are computed at once."""
        observations, actions, outputs = (torch.cat(column) for column in zip(*steps, strict=True))
        log_probs = self._policy.head.log_probs(outputs, actions)
        return AgentOutputs(observations, actions.cpu(), log_probs.cpu())

    @torch.inference_mode()
    def _act(self, observations: Tensor) -> Tensor:
        outputs = self._outputs(observations.to(self._device))
        head, deterministic = self._policy.head, self._params.evaluation.deterministic
        return head.to_env_actions(head.mode(outputs) if deterministic else head.sample(outputs))

    def _request_actions(self, observations: Tensor) -> Tensor:
        try:
            with self._timeline.span("act", "wait"):
                return call(AGENT, inference.act, self._rank, observations).wait()
        except RuntimeError:
            check_shutdown()  # The agent may have left with the request pending.
            raise

    def _make_collector(self, count: int, *, loop: bool = False) -> Collector:
        """`loop` is needed for one seed per episode, which vector implementations don't support."""
        changes = {"vectorization": "loop"} if loop else {}
        environment = self._params.environment.model_copy(update=changes)
        return Collector(creation.make_vector(environment, count), check_shutdown)
