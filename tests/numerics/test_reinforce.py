"""`reinforce` by a gang of processes gives what one process gives, and the same again when it is interrupted."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file
from tests.numerics.reinforce_reference import Alone, TutorialAlone

from rolecall.kit.checkpoint import strip_prefix
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.role import Role
from rolecall.testing.gang import GangResult, run_gang
from rolecall.workloads.reinforce.build import RandomStream, seed_of
from rolecall.workloads.reinforce.params import Params

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
