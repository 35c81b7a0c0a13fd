"""The exported policy and the movie."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageSequence
from PIL.GifImagePlugin import GifImageFile

from rolecall.kit.environments import creation
from rolecall.workloads.reinforce.build import new_policy
from rolecall.workloads.reinforce.export import RenderError, record_episode, write_export
from rolecall.workloads.reinforce.model import load
from rolecall.workloads.reinforce.params import Params

PLAY = """
import sys
import gymnasium
from model import load
policy, environment = load("."), gymnasium.make("Pendulum-v1")
observation, _ = environment.reset(seed=1)
action = policy.act(observation)
environment.step(action)
assert not any(name.startswith("rolecall") for name in sys.modules)
print(action.tolist())
"""


@pytest.mark.slow
def test_the_exported_policy_acts_in_a_fresh_process(tmp_path: Path) -> None:
    params = Params.model_validate({"environment": "Pendulum-v1", "normalize_observations": True})
    policy = new_policy(params, creation.describe(params.environment))
    with zipfile.ZipFile(write_export(tmp_path, policy, params)) as archive:
        archive.extractall(tmp_path / "model")
    environment = creation.make(params.environment)
    observation, _ = environment.reset(seed=1)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    played = subprocess.check_output([sys.executable, "-c", PLAY], cwd=tmp_path / "model", env=clean, text=True)
    assert played.strip() == str(policy.act(observation).tolist())


@pytest.mark.slow
def test_an_episode_is_recorded(tmp_path: Path) -> None:
    params = Params.model_validate({"environment": "CartPole-v1"})
    record_episode(new_policy(params, creation.describe(params.environment)), params, tmp_path / "episode.gif")
    with Image.open(tmp_path / "episode.gif") as movie:
        assert movie.size == (300, 200)
        assert isinstance(movie, GifImageFile)
        assert movie.n_frames > 5


@pytest.mark.slow
def test_a_long_episode_has_few_frames_and_lasts_as_long_as_it_does(tmp_path: Path) -> None:
    environment = {"id": "Pendulum-v1", "max_episode_steps": 600}
    params = Params.model_validate({"environment": environment})
    record_episode(new_policy(params, creation.describe(params.environment)), params, tmp_path / "episode.gif")
    with Image.open(tmp_path / "episode.gif") as movie:
        assert isinstance(movie, GifImageFile)
        assert 125 <= movie.n_frames <= 250
        lasts_ms = sum(one.info["duration"] for one in ImageSequence.Iterator(movie))
    assert lasts_ms / 1000 == pytest.approx(601 / 30, rel=0.05)


def test_what_can_not_be_rendered_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_BUILDERS", "tests.workloads.reinforce")
    params = Params.model_validate({"environment": "tests.workloads.reinforce.playgrounds:Corridor"})
    policy = new_policy(params, creation.describe(params.environment))
    with pytest.raises(RenderError, match="render_mode"):
        record_episode(policy, params, tmp_path / "episode.gif")


def test_a_network_with_tied_weights_loads_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_BUILDERS", "tests.workloads.reinforce")
    network = {"name": "custom", "builder": "tests.workloads.reinforce.playgrounds:Tied"}
    params = Params.model_validate({"environment": "Pendulum-v1", "policy": network})
    policy = new_policy(params, creation.describe(params.environment))
    with zipfile.ZipFile(write_export(tmp_path, policy, params)) as archive:
        archive.extractall(tmp_path / "model")
    loaded: Any = load(tmp_path / "model")
    assert loaded.network.hidden[0].weight is loaded.network.hidden[2].weight
    assert loaded.act([1.0, 0.0, 0.5]) == policy.act([1.0, 0.0, 0.5])
