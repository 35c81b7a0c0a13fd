# pyright: reportPrivateUsage=false
"""The replies of an observer to the agent's requests. `test_remote` has the tutorial's protocol, by RPC."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.measured import increases, measured
from tests.own_process import worker_context
from torch import Tensor

from rolecall.kit import Stopped
from rolecall.kit.environments import creation
from rolecall.kit.worker import Mailbox
from rolecall.spec.metric import ENV_STEPS
from rolecall.spec.role import Role
from rolecall.workloads.reinforce import observer, remote
from rolecall.workloads.reinforce.build import new_policy
from rolecall.workloads.reinforce.observer import _Observer
from rolecall.workloads.reinforce.params import Params
from rolecall.workloads.reinforce.remote import CollectRollout, RolloutResult, RunEvaluation, Weights

GIVEN: dict[str, Any] = {
    "environment": "CartPole-v1",
    "algorithm": {"name": "ppo", "steps": 12},
    "environments": 2,
    "precision": "float64",
}
Make = Callable[..., _Observer]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes observers, each with environments and a policy of its own."""
    with ExitStack() as stack:

        def made(rank: int = 0, **changes: Any) -> _Observer:
            params = Params.model_validate(GIVEN | changes)
            return _Observer(stack.enter_context(worker_context(tmp_path, params, Role.OBSERVER, role_rank=rank)))

        yield made


@cache  # Making a policy seeds the generator, as a rollout has to.
def weights(scale: float = 1.0) -> Weights:
    """Those of a policy that the agent has trained."""
    params = Params.model_validate(GIVEN)
    policy = new_policy(params, creation.describe(params.environment))
    return {name: scale * value for name, value in policy.state_dict().items()}


def rollout(one: _Observer, update: int, *, reset: bool = True, scale: float = 1.0) -> RolloutResult:
    result = one.execute(CollectRollout(update, reset, weights(scale)))
    assert result is not None
    assert result.agent_outputs is not None
    return result


def tensors(result: RolloutResult) -> list[Any]:
    assert result.agent_outputs is not None
    return [one for part in (result.agent_outputs, result.env_outputs) for one in part]


def same(a: RolloutResult, b: RolloutResult) -> bool:
    pairs = zip(tensors(a), tensors(b), strict=True)
    return all(torch.equal(x, y) if isinstance(x, Tensor) else x == y for x, y in pairs)


@pytest.mark.parametrize("changes", [{}, {"algorithm": "reinforce"}], ids=["ppo", "reinforce"])
def test_a_rollout_after_a_reset_depends_only_on_update_rank_and_weights(make: Make, changes: dict[str, Any]) -> None:
    """A resumed attempt therefore collects what the earlier one would have collected."""
    used, fresh = make(**changes), make(**changes)
    for update in (1, 2):
        rollout(used, update)
    torch.rand(7)  # The generator of the process has another state.
    found = rollout(used, 3)
    assert same(found, rollout(fresh, 3))
    assert not same(found, rollout(fresh, 4))
    assert not same(found, rollout(make(rank=1, **changes), 3))
    assert not same(found, rollout(fresh, 3, scale=30.0))


def test_ppos_episodes_continue_in_the_next_rollout_unless_the_agent_asks_for_a_reset(make: Make) -> None:
    one = make()
    assert rollout(one, 1).env_outputs.was_reset
    before = one._collector
    assert not rollout(one, 2, reset=False).env_outputs.was_reset
    assert rollout(one, 3).env_outputs.was_reset
    assert one._collector is before, "the environments stay"


def test_the_reported_log_probabilities_are_those_of_the_weights_that_the_agent_sent(make: Make) -> None:
    one, sent = make(), weights(5.0)
    result = one.execute(CollectRollout(1, True, sent))
    assert result is not None
    outputs = result.agent_outputs
    assert outputs is not None
    policy = one._policy
    assert all(torch.equal(policy.state_dict()[name], value) for name, value in sent.items())
    with torch.no_grad():
        expected = policy.head.log_probs(policy.outputs(outputs.observations), outputs.actions)
    torch.testing.assert_close(outputs.log_probs, expected)


def test_an_evaluation_is_the_same_however_its_seeds_are_shared(make: Make) -> None:
    """A lost observer's seeds go to the others."""

    def lengths(one: _Observer, *seeds: int) -> list[float]:
        result = one.execute(RunEvaluation(seeds, weights(30.0)))
        assert result is not None
        assert result.agent_outputs is None
        return sorted(map(float, result.env_outputs.episode_lengths))

    alone, shared = make(), [make(), make(rank=1)]
    whole = lengths(alone, 5, 6, 7, 8, 9)
    assert len(set(whole)) > 1
    assert sorted(lengths(shared[0], 5, 6, 7) + lengths(shared[1], 8, 9)) == whole
    assert sorted(lengths(shared[1], 5, 6, 7) + lengths(shared[1], 8, 9)) == whole


def test_an_evaluation_changes_no_later_rollout(make: Make) -> None:
    one, other = make(), make()
    for each in (one, other):
        rollout(each, 1)
    one.execute(RunEvaluation((5, 6), weights(30.0)))
    assert same(rollout(one, 2, reset=False), rollout(other, 2, reset=False))


def test_the_steps_of_rollouts_are_counted_without_those_of_evaluations(make: Make) -> None:
    one, before = make(algorithm="reinforce"), measured(ENV_STEPS)
    found = rollout(one, 1)
    assert increases(before, ENV_STEPS) == [sum(found.env_outputs.episode_lengths)]
    one.execute(RunEvaluation((5, 6), weights()))
    assert increases(before, ENV_STEPS) == [sum(found.env_outputs.episode_lengths)]


@pytest.mark.parametrize("stopped", [False, True])
def test_an_observer_serves_until_the_agent_shuts_it_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    for name in ("shutdown_requested", "job_stopped"):
        monkeypatch.setattr(remote, name, threading.Event())
    monkeypatch.setattr(remote, "mailbox", Mailbox[Any, Any]())
    request = CollectRollout(1, True, weights())
    with worker_context(tmp_path, Params.model_validate(GIVEN), Role.OBSERVER) as context:
        reply = remote.mailbox.post(request)
        remote.mailbox.post(None)
        if stopped:
            remote.job_stopped.set()
            with pytest.raises(Stopped, match="stopped with the agent, as requested"):
                observer.run(context)
        else:
            observer.run(context)
        result = reply.wait()
        assert isinstance(result, RolloutResult)
        assert [step.number for step in context.timeline.window(1 << 20).steps] == [1]
