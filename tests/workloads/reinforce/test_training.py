# pyright: reportPrivateUsage=false
"""The agent's bookkeeping, and what it makes of observers that are slow or lost."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.measured import measured
from tests.own_process import worker_context

from rolecall.spec.errors import NonFiniteLoss
from rolecall.spec.metric import POLICY_LAG
from rolecall.spec.role import Role
from rolecall.testing.gang import run_gang
from rolecall.workloads.reinforce.params import Params
from rolecall.workloads.reinforce.remote import _shares
from rolecall.workloads.reinforce.training import Training

GANG = {Role.TRAINER: 1, Role.OBSERVER: 2}
HERE = "tests.workloads.reinforce.playgrounds"
ALLOWED = {"ROLECALL_BUILDERS": "tests.workloads.reinforce"}


def job(environment: str, **changes: Any) -> dict[str, Any]:
    return {
        "environment": f"{HERE}:{environment}",
        "algorithm": {"name": "ppo", "steps": 16, "epochs": 1},
        "environments": 2,
        "max_updates": 6,
        "checkpoint_every_s": None,
        "evaluation": {"episodes": 3, "movie": False},
        **changes,
    }


def test_seeds_are_shared_evenly() -> None:
    assert _shares([1, 2, 3, 4, 5], [0, 2]) == {0: (1, 2, 3), 2: (4, 5)}
    assert _shares([1], [0, 2]) == {0: (1,)}


class _Observers:
    """Two observers, of which the second one's rollout takes until the third update."""

    def __init__(self) -> None:
        self.idle = [0, 1]
        self._gathered = iter([[0], [0], [0, 1], [0, 1]])

    def send(self, rank: int, request: object) -> None: ...

    def gather(self, share: float) -> dict[int, Any]:
        self.idle = next(self._gathered)
        rollout = SimpleNamespace(agent_outputs=(), env_outputs=SimpleNamespace(valid=torch.ones(1)))
        return dict.fromkeys(self.idle, rollout)


def do_nothing(*_: object) -> None: ...


def test_the_policy_lag_is_that_of_the_oldest_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = Params.model_validate({"environment": "CartPole-v1"})
    with worker_context(tmp_path, params, Role.TRAINER) as context:
        training: Any = Training(context)
        training._observers = _Observers()
        for owner, name in ((training._learner, "train"), (training, "_finish_update")):
            monkeypatch.setattr(owner, name, do_nothing)
        lags: list[float] = []
        for update in range(1, 5):
            with context.timeline.step(update):
                training._train_update(update)
            lags += measured(POLICY_LAG)
        spans = [(span.name, span.category) for span in context.timeline.window(1 << 20).spans if span.step == 1]
    assert lags == [0, 0, 2, 0]
    assert spans == [("await rollouts", "wait"), ("learn", "compute")]


TUTORIAL = {
    "protocol": "tutorial",
    "algorithm": "reinforce",
    "policy_at": "agent",
    "environments": 1,
}
EARLY_DEATH = {"environment": {"id": f"{HERE}:Deadly", "kwargs": {"last_step": 3}}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"policy_at": "agent"}, {"policy_at": "observer"}, TUTORIAL | EARLY_DEATH],
    ids=["agent", "observer", "tutorial"],
)
def test_the_agent_continues_without_a_lost_observer(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Observer 1's process dies in its second trajectory, or in one of its first episodes."""
    result = run_gang("reinforce", job("Deadly") | changes, GANG, tmp_path, environment=ALLOWED)
    assert result.result["observers"] == 1
    assert result.result["updates"] == 6


@pytest.mark.slow
def test_the_tutorials_form_ends_when_the_running_return_exceeds_the_target(tmp_path: Path) -> None:
    params = job("Corridor") | TUTORIAL | {"max_updates": 500, "target_return": 0.15}
    result = run_gang("reinforce", params, GANG, tmp_path, environment=ALLOWED)
    assert 0.15 < result.result["running_return"] < 0.15 * 0.95 + 5 * 0.05 + 1e-9
    assert result.result["updates"] < 500
    assert "evaluation_return" in result.result


@pytest.mark.slow
def test_an_observer_that_dies_in_an_evaluation_leaves_its_episodes_to_the_others(tmp_path: Path) -> None:
    params = job("Deadly", evaluation={"episodes": 60, "movie": False}, max_updates=1)
    result = run_gang("reinforce", params, GANG, tmp_path, environment=ALLOWED)
    assert result.result["observers"] == 1
    assert result.result["evaluation_length"] >= 1


@pytest.mark.slow
def test_too_few_observers_end_the_attempt_after_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="1 of 2 observers remain, but least_observers is 2"):
        run_gang("reinforce", job("Deadly", least_observers=2), GANG, tmp_path, environment=ALLOWED)
    assert list(tmp_path.glob("checkpoint-*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("policy_at", ["agent", "observer"])
def test_a_slow_observer_does_not_hold_the_others(tmp_path: Path, policy_at: str) -> None:
    """While the slow one takes seconds over its 16 steps, the other plays alone."""
    params = job("Slow", wait_for=0.5, policy_at=policy_at, max_updates=8, evaluation={"episodes": 1, "movie": False})
    result = run_gang("reinforce", params, GANG, tmp_path, environment=ALLOWED)
    assert result.result["updates"] == 8
    assert result.result["env_steps"] < 1.5 * 8 * 16 * 2


class _Evaluations(list[float]):
    """Observers whose evaluations have these returns."""

    def evaluate(self, seeds: list[int], weights: object) -> list[Any]:
        return [SimpleNamespace(episode_returns=torch.tensor([self.pop(0)]), episode_lengths=torch.ones(1))]


@pytest.fixture
def evaluated(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes loops whose evaluations have the given returns."""
    with worker_context(tmp_path, Params.model_validate({"environment": "CartPole-v1"}), Role.TRAINER) as context:

        def make(*returns: float) -> Any:
            training: Any = Training(context)
            training._observers = _Evaluations(returns)
            return training

        yield make


def test_a_return_or_weights_that_are_not_finite_are_never_the_best(evaluated: Callable[..., Any]) -> None:
    training = evaluated(1.0, math.nan, math.inf, 9.0)
    for _ in range(3):
        training._evaluate()
    torch.nn.init.constant_(training._learner.policy.network.actor[-1].bias, torch.nan)
    training._evaluate()
    assert training.position.best["evaluation_return"] == 1.0
    assert all(one.isfinite().all() for one in training._best_weights.values())


def test_without_a_finite_evaluation_the_job_fails_for_good(evaluated: Callable[..., Any]) -> None:
    with pytest.raises(NonFiniteLoss, match="evaluation_return is nan; lower the learning rate or check") as caught:
        evaluated(math.nan)._evaluate()
    assert not caught.value.retryable
