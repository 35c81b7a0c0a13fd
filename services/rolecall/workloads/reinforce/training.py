"""The agent's loop: collect rollouts, update the policy, evaluate it, write checkpoints."""

import logging
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rolecall.kit import CheckpointManifest, CheckpointPart, NonFiniteLoss, PeerLost, Role, StopMode, Stopped
from rolecall.kit.checkpoint import strip_prefix
from rolecall.kit.declarations import POLICY_LAG
from rolecall.kit.environments import creation
from rolecall.kit.environments.inference import InferenceServer
from rolecall.kit.environments.rollouts import Trajectory
from rolecall.kit.environments.scores import EndedEpisodes, episode_metrics, evaluation_scores, running_return
from rolecall.kit.job_loop import JobLoop
from rolecall.kit.optimizers import are_finite
from rolecall.kit.worker import WorkerContext, about, measurements
from rolecall.workloads.reinforce.build import Episode, Learner, RandomStream, new_policy, seed_of
from rolecall.workloads.reinforce.export import RenderError, record_episode, write_export
from rolecall.workloads.reinforce.model import Policy
from rolecall.workloads.reinforce.params import Params
from rolecall.workloads.reinforce.remote import Agent, CollectRollout, ObserverPool, RolloutResult, Weights

_LOG = logging.getLogger(__name__)
_PART = "agent"
_BEST = "best/"


@dataclass(frozen=True, slots=True)
class UpdatePosition:
    """State of a training in updates that a resumed attempt needs, besides the tensors."""

    update: int = 0
    """Updates since the start of the job."""
    env_steps: int = 0
    """Environment steps trained on."""
    episodes: int = 0
    """Episodes that ended in these steps."""
    evaluated: int = 0
    """The update of the last evaluation."""
    best: dict[str, float] | None = None
    """The metrics of the best evaluation so far, whose weights are kept."""
    running_return: float = 0.0
    """The running average, over updates, of the lowest return of an observer."""


class Training(JobLoop[UpdatePosition, Params]):
    """The agent's loop."""

    def __init__(self, context: WorkerContext[Params]) -> None:
        super().__init__(context, UpdatePosition())
        params = context.params
        spaces = creation.describe(params.environment)
        self._learner = Learner(params, spaces, context.device)
        self._observers = ObserverPool(
            context.count(Role.OBSERVER), params.least_observers, context.report.event, self._poll
        )
        self._inference, self._agent = None, None
        if params.protocol == "tutorial":
            self._agent = Agent(self._learner.policy, context.device)
        elif params.policy_at == "agent":
            self._inference = self._make_inference(spaces)
        self._target = (
            creation.reward_threshold(params.environment)
            if params.target_return == "threshold"
            else params.target_return
        )
        self._best_weights: Weights = {}
        self._reset = True
        self._saved_update = 0
        self._unlogged: tuple[int, str, float] | None = None
        """Number and returns of the newest update, if they are not in the log."""
        self._requested: dict[int, int] = {}
        """The update for which each observer collects rollouts."""

    @property
    def step(self) -> int:
        return self.position.update

    def run(self) -> dict[str, float]:
        """Train to the end. Returns the job's result.

        Raises `Stopped` after a stop request, and `PeerLost`, after writing a checkpoint, if too few observers remain.
        """
        began = self._clock()
        self.resume()
        first_step = self.position.env_steps
        with ExitStack() as stack:
            if self._inference is not None:
                stack.enter_context(self._inference.serving())
            if self._agent is not None:
                self._agent.create_observers(self.context.count(Role.OBSERVER))
            self._train()
            self._shut_down(stopped=False)
        wall_s = self._clock() - began
        rate = (self.position.env_steps - first_step) / wall_s
        movie = " and recording a movie" if self.params.evaluation.movie else ""
        with self.finishing(f"exporting the model{movie}"):
            policy = self._export()
            result = self._result() | {"samples_per_s": rate, "wall_s": wall_s}
            if self.params.evaluation.movie:
                self.context.report.result(result)  # Nobody needs to wait for the movie to read it.
                self._record_movie(policy)
        return result

    def _train(self) -> None:
        try:
            self._run_updates()
        except Stopped:
            if self.context.stop_requested() in (StopMode.PAUSE, StopMode.DRAIN):
                self._save_if_new()
            self._shut_down(stopped=True)
            raise
        except PeerLost:
            self._save_if_new()
            raise

    def _shut_down(self, *, stopped: bool) -> None:
        if self._agent is not None:
            self._agent.release_observers()
        self._observers.shutdown(stopped=stopped)

    def _run_updates(self) -> None:
        while True:
            update = self.position.update
            due = update % self.params.evaluation.every_updates == 0 or self._finished()
            if due and update > self.position.evaluated:
                self._evaluate()
            if self._finished():
                if self._target_reached():
                    self.context.report.event(f"reached target_return {self._target:g} at update {update}")
                self._log_update()
                return
            with self.context.timeline.step(update + 1):
                self._train_update(update + 1)
            if self._checkpoint_due():
                self._save_if_new()

    def _finished(self) -> bool:
        return self._out_of_steps() or self._target_reached()

    def _out_of_steps(self) -> bool:
        updates = self.params.max_updates
        return self.position.env_steps >= self.params.env_steps or (
            updates is not None and self.position.update >= updates
        )

    def _target_reached(self) -> bool:
        """In the tutorial's protocol by the running return, as in the tutorial, otherwise by the best evaluation."""
        if self._target is None:
            return False
        if self._agent is not None:
            return self.position.running_return > self._target
        return self.position.best is not None and self.position.best["evaluation_return"] >= self._target

    def _train_update(self, update: int) -> None:
        """Request rollouts from all idle observers, and train on those that are available."""
        timeline = self.context.timeline
        rate = self.params.lr_schedule.factor(self.position.env_steps, self.params.env_steps)
        if self._agent is not None:
            with timeline.span("await rollouts", "wait"):
                episodes = self._run_episodes(self._agent, update)
            with timeline.span("learn"):
                losses = self._learner.finish_episodes(episodes, rate)
            self._finish_update(losses, sum(len(one.rewards) for one in episodes.values()), episodes)
            return
        with timeline.span("await rollouts", "wait"):
            self._start_rollouts(update)
            rollouts = self._observers.gather(self.params.wait_for)
        trajectories = {rank: self._trajectory(rank, one) for rank, one in rollouts.items()}
        measurements.set(POLICY_LAG, update - min(self._requested[rank] for rank in rollouts))
        with timeline.span("learn"):
            losses = self._learner.train(update, trajectories, rate)
        env_outputs = {rank: trajectory.env_outputs for rank, trajectory in trajectories.items()}
        self._finish_update(losses, sum(int(one.valid.sum()) for one in env_outputs.values()), env_outputs)

    def _finish_update(self, losses: dict[str, float], steps: int, episodes: Mapping[int, EndedEpisodes]) -> None:
        """Advance the position, and report the update: `steps` are the environment steps trained on."""
        position, metrics = self.position, episode_metrics(episodes)
        self.position = replace(
            position,
            update=position.update + 1,
            env_steps=position.env_steps + steps,
            episodes=position.episodes + sum(len(one.episode_returns) for one in episodes.values()),
            running_return=running_return(position.running_return, metrics),
        )
        self._report(steps, losses, metrics)

    def _run_episodes(self, agent: Agent, update: int) -> dict[int, Episode]:
        """One episode of each observer by the tutorial's protocol."""
        torch.manual_seed(  # pyright: ignore[reportUnknownMemberType] - torch's own types
            seed_of(self.params.seed, RandomStream.ACTIONS, update)
        )
        alike = self.params.environment_seeds == "same"
        for rank in self._observers.idle:
            seed = seed_of(self.params.seed, RandomStream.ENVIRONMENTS, 0 if alike else rank, update)
            self._observers.expect(rank, agent.start_episode(rank, seed))
        return {rank: agent.episode(rank) for rank in self._observers.gather(1.0)}

    def _start_rollouts(self, update: int) -> None:
        """Request rollouts with the newest weights from all idle observers."""
        weights = self._learner.weights()
        if self._inference is not None:
            self._inference.load_weights(weights)
        for rank in self._observers.idle:
            if self._inference is not None:
                self._inference.start_trajectory(rank)
            self._requested[rank] = update
            sent = weights if self._inference is None else None
            self._observers.send(rank, CollectRollout(update, self._reset, sent))
        self._reset = False

    def _trajectory(self, rank: int, rollout: RolloutResult | None) -> Trajectory:
        assert rollout is not None
        agent_outputs = rollout.agent_outputs
        if agent_outputs is None:
            assert self._inference is not None
            agent_outputs = self._inference.agent_outputs(rank)
        return Trajectory(agent_outputs, rollout.env_outputs)

    def _report(self, steps: int, losses: dict[str, float], episodes: dict[str, float]) -> None:
        position, every = self.position, self.params.log_every_updates
        lowest = f"{episodes['observer_return_min']:.2f}" if episodes else "none"
        self._unlogged = (position.update, lowest, position.running_return)
        if self._take_log_turn(is_last=False) if every is None else position.update % every == 0:
            self._log_update()
        # The estimated total updates, from the mean steps per update so far.
        expected = math.ceil(position.update * self.params.env_steps / max(1, position.env_steps))
        expected = max(position.update, min(expected, self.params.max_updates or expected))
        self.context.report(
            position.update,
            loss=losses["loss"],
            samples=steps,
            steps=expected,
            spent=self.spent,
            metrics={
                "env_steps": position.env_steps,
                "observers": len(self._observers.alive),
                "running_return": position.running_return,
                **{name: value for name, value in losses.items() if name != "loss"},
                **episodes,
            },
        )

    def _log_update(self) -> None:
        """Log the newest update, unless it is in the log."""
        if self._unlogged is not None:
            text = "update %d: lowest return of an observer %s, running return %.2f"
            _LOG.info(text, *self._unlogged, extra=about("returns"))
            self._unlogged = None

    def _evaluate(self) -> None:
        """Evaluate the newest weights, and keep them if they are the best so far.

        Raises `NonFiniteLoss` if no evaluation so far has a finite return.
        """
        chosen = self.params.evaluation
        seeds = list(range(chosen.seed, chosen.seed + chosen.episodes))
        weights = self._learner.weights()
        with self.context.timeline.span("evaluate", "evaluation"):
            scores = evaluation_scores(self._observers.evaluate(seeds, weights))
        self.context.report.evaluated(self.position.update, None, scores)
        self.position = replace(self.position, evaluated=self.position.update)
        best = self.position.best
        # Weights that are NaN can have a finite return: the most likely of several actions is then the first one.
        is_finite = math.isfinite(scores["evaluation_return"]) and are_finite(self._learner.policy.parameters())
        if best is None and not is_finite:
            raise NonFiniteLoss(
                f"no evaluation has a finite return and finite weights until update {self.position.update}: "
                f"evaluation_return is {scores['evaluation_return']:.4g}; lower the learning rate or check the "
                "environment's rewards"
            )
        if best is None or (is_finite and scores["evaluation_return"] > best["evaluation_return"]):
            self.position = replace(self.position, best=scores)
            self._best_weights = weights

    def _poll(self) -> None:
        """Called while waiting: raises `Stopped` after a stop request, or the error of the inference thread."""
        if self.context.stop_requested() is not None:
            raise Stopped("stopped between two updates, as requested")
        if self._inference is not None:
            self._inference.check()
        if self._agent is not None:
            self._agent.check()

    def _make_inference(self, spaces: dict[str, Any]) -> InferenceServer:
        device, chosen = self.context.device, self.params.inference
        policy = new_policy(self.params, spaces).to(device)

        def sample(observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            actions, log_probs = policy.sample_actions(observations.to(device))
            return actions, log_probs, policy.head.to_env_actions(actions)

        return InferenceServer(
            policy, sample, lambda: chosen.batch or self._observers.busy_count, chosen.deadline_ms / 1000
        )

    def _checkpoint_due(self) -> bool:
        params = self.params
        return self.at_checkpoint_step(params.checkpoint_every_updates) or self.checkpoint_overdue(
            params.checkpoint_every_s
        )

    def _save_if_new(self) -> None:
        if self._saved_update != self.step:
            self.save()

    def save_parts(self, step: int) -> list[CheckpointPart]:
        """The agent's part. Environments can't be saved, so they are reset after every checkpoint, resumed or not."""
        self._saved_update, self._reset = step, True
        tensors = self._learner.tensors() | {_BEST + name: value for name, value in self._best_weights.items()}
        return [self.context.checkpoints.save_part(step, _PART, tensors)]

    def load(self, manifest: CheckpointManifest) -> None:
        tensors = self.context.checkpoints.load_part(manifest, _PART)
        self._learner.restore(tensors)
        self._best_weights = strip_prefix(tensors, _BEST)
        self._saved_update = manifest.step

    def _export(self) -> Policy:
        """Store the policy of the best evaluation, and return it."""
        self._learner.policy.load_state_dict(self._best_weights)
        policy = self._learner.policy.cpu().eval()
        path = write_export(self.context.workdir.scratch, policy, self.params)
        self.context.artifacts.put(path.name, path)
        return policy

    def _record_movie(self, policy: Policy) -> None:
        """Store a movie of the policy."""
        path = self.context.workdir.scratch / "episode.gif"
        try:
            record_episode(policy, self.params, path, (self.position.best or {}).get("evaluation_length", 0.0))
        except RenderError as error:
            self.context.report.event(f"no movie: {error}")
            return
        self.context.artifacts.put(path.name, path)

    def _result(self) -> dict[str, float]:
        position = self.position
        counts = {
            "env_steps": float(position.env_steps),
            "episodes": float(position.episodes),
            "updates": float(position.update),
            "observers": float(len(self._observers.alive)),
            "running_return": position.running_return,
        }
        return {**(position.best or {}), **counts}
