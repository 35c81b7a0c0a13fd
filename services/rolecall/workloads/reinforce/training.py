"""The agent's loop: have trajectories played, learn from them, judge the policy, write checkpoints."""

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch

from rolecall.kit.loop import JobLoop
from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import PeerLost, Stopped
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.spec.state import StopMode
from rolecall.workloads.reinforce import environments
from rolecall.workloads.reinforce.export import write_export
from rolecall.workloads.reinforce.inference import Inference
from rolecall.workloads.reinforce.learner import Learner, below, new_policy
from rolecall.workloads.reinforce.model import Policy
from rolecall.workloads.reinforce.movie import NoPicture, film
from rolecall.workloads.reinforce.observer import Play, Played, Weights
from rolecall.workloads.reinforce.observers import Observers
from rolecall.workloads.reinforce.params import Params
from rolecall.workloads.reinforce.trajectory import Outcomes, Trajectory

_PART = "agent"
_BEST = "best/"


@dataclass(frozen=True, slots=True)
class Position:
    """Where the training stands; everything that a resumed attempt needs besides the tensors."""

    update: int = 0
    """Updates done."""
    env_steps: int = 0
    """Steps of environments learnt from."""
    episodes: int = 0
    """Episodes that ended in them."""
    evaluated: int = 0
    """The update after which the policy was judged last."""
    best: dict[str, float] | None = None
    """The scores of the best evaluation so far, whose weights are kept."""


class Training(JobLoop[Position, Params]):
    """The agent's part of a job, from the first update (or the checkpoint) to the job's result."""

    def __init__(self, context: WorkerContext[Params]) -> None:
        super().__init__(context, Position())
        params = context.params
        spaces = environments.describe(params.environment)
        self._learner = Learner(params, spaces, context.device)
        self._observers = Observers(
            context.count(Role.OBSERVER), params.least_observers, context.report.event, self._look
        )
        self._inference = self._make_inference(spaces) if params.policy_at == "agent" else None
        self._best: Weights = {}
        self._restart = True
        self._saved_update = 0

    @property
    def step(self) -> int:
        """Updates done."""
        return self.position.update

    def run(self) -> dict[str, float]:
        """Train to the end; the job's result.

        Raises `Stopped` if the gang was asked to leave, `PeerLost` (with a checkpoint written) if too few observers are
        left.
        """
        began = time.monotonic()
        self.resume()
        first_step = self.position.env_steps
        with ExitStack() as stack:
            if self._inference is not None:
                stack.enter_context(self._inference.serving())
            self._train()
            self._observers.dismiss(stopped=False)
        wall_s = time.monotonic() - began
        rate = (self.position.env_steps - first_step) / wall_s
        self._export()
        return self._result() | {"samples_per_s": rate, "wall_s": wall_s}

    def _train(self) -> None:
        try:
            self._all_updates()
        except Stopped:
            if self.context.stop_requested() in (StopMode.PAUSE, StopMode.DRAIN):
                self._save_once()
            self._observers.dismiss(stopped=True)
            raise
        except PeerLost:
            self._save_once()
            raise

    def _all_updates(self) -> None:
        while True:
            if self._evaluation_due():
                self._evaluate()
            if self._finished():
                return
            self._update()
            if self._checkpoint_due():
                self._save_once()

    def _finished(self) -> bool:
        best, target = self.position.best, self.params.target_return
        return self._out_of_steps() or (target is not None and best is not None and best["evaluation_return"] >= target)

    def _out_of_steps(self) -> bool:
        updates = self.params.max_updates
        return self.position.env_steps >= self.params.env_steps or (
            updates is not None and self.position.update >= updates
        )

    def _update(self) -> None:
        """Have a trajectory played by every observer that is idle, and learn from those that are there."""
        update = self.position.update + 1
        self._order(update)
        trajectories = {rank: self._trajectory(rank, one) for rank, one in self._gather().items()}
        rate = self.params.lr_schedule.factor(self.position.env_steps, self.params.env_steps)
        losses = self._learner.learn(update, trajectories, rate)
        outcomes = {rank: trajectory.outcomes for rank, trajectory in trajectories.items()}
        steps = sum(int(one.valid.sum()) for one in outcomes.values())
        self.position = replace(
            self.position,
            update=update,
            env_steps=self.position.env_steps + steps,
            episodes=self.position.episodes + sum(len(one.episode_returns) for one in outcomes.values()),
        )
        self._report(steps, losses, outcomes)

    def _order(self, update: int) -> None:
        """All that are idle play with the newest weights."""
        weights = self._learner.weights()
        if self._inference is not None:
            self._inference.use(weights)
        for rank in self._observers.idle:
            if self._inference is not None:
                self._inference.begin(rank)
            sent = weights if self._inference is None else None
            self._observers.order(rank, Play(update, self._restart, sent))
        self._restart = False

    def _gather(self) -> dict[int, Played]:
        return self._observers.gather(self.params.wait_for)

    def _trajectory(self, rank: int, played: Played) -> Trajectory:
        decisions = played.decisions
        if decisions is None:
            assert self._inference is not None
            decisions = self._inference.decisions(rank)
        return Trajectory(decisions, played.outcomes)

    def _report(self, steps: int, losses: dict[str, float], outcomes: dict[int, Outcomes]) -> None:
        position = self.position
        self.context.report(
            position.update,
            loss=losses["loss"],
            samples=steps,
            steps=self._expected_updates(),
            metrics={
                "env_steps": position.env_steps,
                "observers": len(self._observers.left),
                **{name: value for name, value in losses.items() if name != "loss"},
                **episode_metrics(outcomes),
            },
        )

    def _expected_updates(self) -> int:
        """The job's updates if those to come have as many steps as those so far, and it does not end early."""
        position = self.position
        expected = math.ceil(position.update * self.params.env_steps / max(1, position.env_steps))
        return max(position.update, min(expected, self.params.max_updates or expected))

    def _evaluation_due(self) -> bool:
        update = self.position.update
        due = update % self.params.evaluation.every_updates == 0 or self._out_of_steps()
        return due and update > self.position.evaluated

    def _evaluate(self) -> None:
        """Play the evaluation's episodes with the newest weights, and keep these if they are the best so far."""
        chosen = self.params.evaluation
        seeds = list(range(chosen.seed, chosen.seed + chosen.episodes))
        weights = self._learner.weights()
        scores = evaluation_scores(self._observers.evaluate(seeds, weights))
        self.context.report.evaluated(self.position.update, None, scores)
        self.position = replace(self.position, evaluated=self.position.update)
        best = self.position.best
        if best is None or scores["evaluation_return"] > best["evaluation_return"]:
            self.position = replace(self.position, best=scores)
            self._best = weights

    def _look(self) -> None:
        """While waiting: raises `Stopped` when asked to leave, and what may have ended the inference."""
        if self.context.stop_requested() is not None:
            raise Stopped("left between two updates, as asked")
        if self._inference is not None:
            self._inference.check()

    def _make_inference(self, spaces: dict[str, Any]) -> Inference:
        policy = new_policy(self.params, spaces).to(self.context.device)
        chosen = self.params.inference
        if self.params.protocol == "tutorial":
            return Inference(policy, self.context.device, lambda: 1, 0.0)
        return Inference(
            policy, self.context.device, lambda: chosen.batch or self._observers.at_work, chosen.deadline_ms / 1000
        )

    def _checkpoint_due(self) -> bool:
        params = self.params
        return self.at_checkpoint_step(params.checkpoint_every_updates) or self.checkpoint_overdue(
            params.checkpoint_every_s
        )

    def _save_once(self) -> None:
        if self._saved_update != self.step:
            self.save()

    def save_parts(self, step: int) -> list[CheckpointPart]:
        """The agent's part. The environments are not in it, so they begin anew after it, resumed or not."""
        self._saved_update, self._restart = step, True
        tensors = self._learner.tensors() | {_BEST + name: value for name, value in self._best.items()}
        return [self.context.checkpoints.save_part(step, _PART, tensors)]

    def load(self, manifest: CheckpointManifest) -> None:
        """Go back to the agent's part."""
        tensors = self.context.checkpoints.load_part(manifest, _PART)
        self._learner.restore(tensors)
        self._best = below(tensors, _BEST)
        self._saved_update = manifest.step

    def _export(self) -> None:
        """Leave the policy that was judged best, and a movie of it."""
        self._learner.policy.load_state_dict(self._best)
        policy = self._learner.policy.cpu()
        scratch, artifacts = self.context.workdir.scratch, self.context.artifacts
        path = write_export(scratch, policy, self.params)
        artifacts.put(path.name, path)
        if self.params.evaluation.movie:
            self._film(policy)

    def _film(self, policy: Policy) -> None:
        path = self.context.workdir.scratch / "episode.gif"
        try:
            film(policy, self.params, path)
        except NoPicture as error:
            self.context.report.event(f"there is no movie: {error}")
            return
        self.context.artifacts.put(path.name, path)

    def _result(self) -> dict[str, float]:
        position = self.position
        counts = {
            "env_steps": float(position.env_steps),
            "episodes": float(position.episodes),
            "updates": float(position.update),
            "observers": float(len(self._observers.left)),
        }
        return {**(position.best or {}), **counts}


def episode_metrics(outcomes: dict[int, Outcomes]) -> dict[str, float]:
    """The mean return and length of the episodes that ended in an update, of all observers and of each."""
    ended = {rank: one.episode_returns for rank, one in outcomes.items() if len(one.episode_returns)}
    if not ended:
        return {}
    lengths = torch.cat([outcomes[rank].episode_lengths for rank in ended])
    return {
        "episode_return": float(torch.cat(list(ended.values())).mean()),
        "episode_length": float(lengths.double().mean()),
        **{f"observer_{rank}_return": float(returns.mean()) for rank, returns in ended.items()},
    }


def evaluation_scores(outcomes: list[Outcomes]) -> dict[str, float]:
    """Mean, deviation and extremes of the returns of an evaluation's episodes."""
    returns = torch.cat([one.episode_returns for one in outcomes])
    lengths = torch.cat([one.episode_lengths for one in outcomes])
    return {
        "evaluation_return": float(returns.mean()),
        "evaluation_return_std": float(returns.std(correction=0)),
        "evaluation_return_min": float(returns.min()),
        "evaluation_return_max": float(returns.max()),
        "evaluation_length": float(lengths.double().mean()),
    }
