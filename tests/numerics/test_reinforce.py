# pyright: standard, reportPrivateUsage=false
"""`reinforce` by a gang of processes gives what one process gives, and the same again when it is interrupted."""

import json
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file
from tests.numerics.reinforce_reference import Alone, TutorialAlone
from tests.own_process import worker_context
from torch.futures import Future

from rolecall.kit.checkpoint import strip_prefix
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.role import Role
from rolecall.testing.gang import GangResult, run_gang
from rolecall.workloads.reinforce import remote
from rolecall.workloads.reinforce.build import RandomStream, seed_of
from rolecall.workloads.reinforce.observer import _Observer
from rolecall.workloads.reinforce.params import Params
from rolecall.workloads.reinforce.remote import CollectRollout, ObserverPool, RolloutResult
from rolecall.workloads.reinforce.training import Training

PPO = {"name": "ppo", "steps": 96, "epochs": 3, "minibatch_size": 48, "entropy_coefficient": 0.01}
JOBS = {
    "ppo": {"environment": "CartPole-v1", "algorithm": PPO},
    "ppo, continuous": {"environment": "Pendulum-v1", "algorithm": {**PPO, "steps": 220, "gamma": 0.9}},
    "reinforce": {"environment": "CartPole-v1", "algorithm": {"name": "reinforce"}},
    "reinforce, cut off": {
        "environment": {"id": "CartPole-v1", "max_episode_steps": 15},
        "algorithm": {"name": "reinforce"},
    },
}
# The first losses of the job `ppo`, so that a change of what is learned is noticed even where both sides change.
GOLDEN = [21.645697251, 19.436808889, 19.640795987]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the gang's workers have: the first weights' last digits depend on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def roles(observers: int) -> dict[Role, int]:
    return {Role.TRAINER: 1, Role.OBSERVER: observers}


def job(name: str, **changes: Any) -> dict[str, Any]:
    return {
        **JOBS[name],
        "environments": 3,
        "max_updates": 6,
        "precision": "float64",
        "seed": 7,
        "checkpoint_every_s": None,
        "evaluation": {"episodes": 2, "movie": False},
        **changes,
    }


def losses(result: GangResult) -> torch.Tensor:
    return torch.tensor(result.losses["trainer-0"], dtype=torch.float64)


def weights(result: GangResult) -> dict[str, torch.Tensor]:
    with zipfile.ZipFile(result.artifact("model.zip")) as archive:
        return load_tensors(archive.read("model.safetensors"))


def checkpoint(folder: Path, step: int) -> CheckpointManifest:
    return CheckpointManifest.model_validate(json.loads((folder / f"checkpoint-{step:06d}.json").read_text()))


def state(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint."""
    (part,) = checkpoint(folder, step).parts
    return load_file(folder / "blobs" / "job" / part.blob)


def assert_parity(name: str, folder: Path, observers: int, updates: int) -> GangResult:
    params = job(name, max_updates=updates, checkpoint_every_updates=updates)
    result = run_gang("reinforce", params, roles(observers), folder)
    alone = Alone(Params.model_validate(params), observers)
    alone.run(updates)
    expected = torch.tensor(alone.losses, dtype=torch.float64)
    torch.testing.assert_close(losses(result), expected, rtol=0, atol=1e-10)
    learnt = strip_prefix(state(folder, updates), "policy/")
    torch.testing.assert_close(learnt, dict(alone.policy.state_dict()), rtol=0, atol=1e-10)
    return result


@pytest.mark.slow
def test_an_observer_and_the_agent_learn_what_one_process_does(tmp_path: Path) -> None:
    result = assert_parity("ppo", tmp_path, observers=1, updates=3)
    assert losses(result).tolist() == pytest.approx(GOLDEN, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_float64_parity_over_10_updates(tmp_path: Path, name: str) -> None:
    assert_parity(name, tmp_path, observers=2, updates=10)


@pytest.mark.slow
@pytest.mark.parametrize("joined", [False, True], ids=["ours", "as in the tutorial"])
def test_the_tutorials_agent_learns_what_it_does_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joined: bool
) -> None:
    """With returns that end with their episode, and with the tutorial's, and its equal seeds."""
    monkeypatch.setenv("ROLECALL_BUILDERS", "tests.workloads.reinforce")
    recorder = {"entry_point": "tests.workloads.reinforce.playgrounds:Recorded", "kwargs": {"folder": str(tmp_path)}}
    params = {
        "environment": {"id": "CartPole-v1", "wrappers": [recorder]},
        "protocol": "tutorial",
        "algorithm": {"name": "reinforce", "returns": "joined" if joined else "separate"},
        "environment_seeds": "same" if joined else "different",
        "policy_at": "agent",
        "environments": 1,
        "policy": {"name": "mlp", "hidden": [128], "activation": "relu"},
        "optimizer": {"name": "adam", "lr": 0.01},
        "max_grad_norm": None,
        "precision": "float64",
        "seed": 7,
        "max_updates": 8,
        "checkpoint_every_updates": 8,
        "evaluation": {"episodes": 2, "movie": False},
    }
    result = run_gang("reinforce", params, roles(2), tmp_path)
    checked = Params.model_validate(params)
    alone = TutorialAlone(checked, joined=joined)
    for update in range(1, 9):
        positions = [0, 0] if joined else [0, 1]
        seeds = [seed_of(checked.seed, RandomStream.ENVIRONMENTS, position, update) for position in positions]
        files = [tmp_path / f"{observer}-{seed}.json" for observer, seed in enumerate(seeds)]
        episodes = [json.loads(file.read_text()) for file in files]
        assert (episodes[0][0][0] == episodes[1][0][0]) == joined  # the first observations
        alone.finish_episode(episodes)
    torch.testing.assert_close(losses(result), torch.tensor(alone.losses, dtype=torch.float64), rtol=0, atol=1e-10)
    learnt = strip_prefix(state(tmp_path, 8), "policy/")
    torch.testing.assert_close(learnt, dict(alone.policy.state_dict()), rtol=0, atol=1e-10)
    assert result.result["running_return"] == pytest.approx(alone.running_reward, abs=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo, continuous", "reinforce"])
def test_the_same_again_and_after_an_interruption(tmp_path: Path, name: str) -> None:
    """Also the statistics of observations and rewards, and the environments that begin again."""
    params = job(name, normalize_observations=True, normalize_rewards=True, checkpoint_every_updates=3)
    whole, again, resumed = (tmp_path / folder for folder in ("whole", "again", "resumed"))
    expected = run_gang("reinforce", params, roles(2), whole)
    repeated = run_gang("reinforce", params, roles(2), again)
    assert repeated.losses == expected.losses
    torch.testing.assert_close(state(again, 6), state(whole, 6), rtol=0, atol=0)
    resumed.mkdir()
    (resumed / "blobs").symlink_to(whole / "blobs")
    expected_state, expected_weights = state(whole, 6), weights(expected)
    rest = run_gang("reinforce", params, roles(2), resumed, resume_from=checkpoint(whole, 3))
    assert rest.losses["trainer-0"] == expected.losses["trainer-0"][3:]
    torch.testing.assert_close(state(resumed, 6), expected_state, rtol=0, atol=0)
    torch.testing.assert_close(weights(rest), expected_weights, rtol=0, atol=0)


class OrderedObservers:
    """Observers in this process, whose replies arrive in a given order. Only RPC and time are replaced.

    An observer collects no earlier than its reply arrives, so that weights would be too new if they were not a copy.
    """

    def __init__(self, observers: Sequence[_Observer], arrivals: Iterable[Sequence[int]]) -> None:
        """`arrivals` has the observers whose replies arrive at the same time, for all times at which the agent waits
        for more."""
        self.pool = ObserverPool(len(observers), 1, lambda _event: None, self.arrive)
        self._observers = observers
        self._arrivals = iter(arrivals)
        self._pending: dict[str, tuple[CollectRollout, Future[RolloutResult | None]]] = {}

    def call(self, observer: str, _function: object, request: CollectRollout, *, timeout: float) -> Future[Any]:
        """Instead of RPC."""
        assert timeout == 0
        assert observer not in self._pending
        reply: Future[RolloutResult | None] = Future()
        self._pending[observer] = (request, reply)
        return reply

    def arrive(self) -> None:
        """Called by the pool before it takes a reply, which may be another one of those that arrived together."""
        if not self.pool._replies.empty():
            return
        for rank in next(self._arrivals):
            request, reply = self._pending.pop(remote.observer_name(rank))
            reply.set_result(self._observers[rank].execute(request))


def run_in_order(
    params: dict[str, Any],
    arrivals: Sequence[Sequence[Sequence[int]]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[dict[str, torch.Tensor]]:
    """The tensors that the agent would store in a checkpoint after each update, with the arrivals before it."""
    checked, found = Params.model_validate(params), []
    with ExitStack() as stack:
        observers = [
            _Observer(stack.enter_context(worker_context(folder / f"{rank}", checked, Role.OBSERVER, role_rank=rank)))
            for rank in sorted(set(chain(*chain(*arrivals))))
        ]
        context = stack.enter_context(worker_context(folder / "agent", checked, Role.TRAINER))
        training, ordered = Training(context), OrderedObservers(observers, chain(*arrivals))
        training._observers = ordered.pool
        monkeypatch.setattr(remote, "call", ordered.call)
        for update, _ in enumerate(arrivals, 1):
            with context.timeline.step(update):
                training._train_update(update)
            found.append({name: value.clone() for name, value in training._learner.tensors().items()})
    return found


LATE = [[[1], [0]], [[0, 1]], [[2], [0]], [[0, 1]], [[1], [2, 0]], [[0, 1, 2]]]
"""Arrivals of three observers, by update. Each waits for two. In the third update, one trajectory is two updates old,
and in the two updates after it, one is one update old."""


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_late_trajectories_are_learned_from_with_the_probabilities_of_their_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Values and advantages are those of the newest policy, for all trajectories."""
    params = job(name, wait_for=0.5)
    states = run_in_order(params, LATE, tmp_path, monkeypatch)
    alone = Alone(Params.model_validate(params), observers=3)
    for arrived, state_after in zip(LATE, states, strict=True):
        alone.update(list(chain(*arrived)))
        learnt = strip_prefix(state_after, "policy/")
        torch.testing.assert_close(learnt, dict(alone.policy.state_dict()), rtol=0, atol=1e-10)
    assert [change > 1e-3 for change in alone.changes] == [False, False, True, True, True, False]


@pytest.mark.parametrize("name", ["ppo", "reinforce"])
def test_a_share_of_the_observers_is_as_good_as_all_if_all_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    arrivals = [[[1, 0]], [[0, 1]], [[1, 0]]]
    waiting, default = (
        run_in_order(job(name, **changes), arrivals, tmp_path / folder, monkeypatch)
        for folder, changes in (("waiting", {"wait_for": 0.5}), ("default", {}))
    )
    torch.testing.assert_close(waiting, default, rtol=0, atol=0)
    assert Params.model_validate(job(name, wait_for=1.0)) == Params.model_validate(job(name))


@pytest.mark.slow
def test_any_share_of_one_observer_is_all_of_it(tmp_path: Path) -> None:
    shares, states = (0.01, 1.0), []
    for share in shares:
        folder = tmp_path / str(share)
        run_gang("reinforce", job("ppo", wait_for=share, checkpoint_every_updates=6), roles(1), folder)
        states.append(state(folder, 6))
    torch.testing.assert_close(*states, rtol=0, atol=0)
