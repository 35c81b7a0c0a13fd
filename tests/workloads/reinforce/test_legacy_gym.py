"""Environments of the old Gym, in a virtual environment of their own with Rolecall's extra `gym`."""

import json
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLAY = """
import sys
from pathlib import Path

from rolecall.kit.environments import creation
from rolecall.kit.environments.params import Environment
from rolecall.kit.environments.rollouts import Collector
from rolecall.spec.role import Role
from rolecall.workloads.reinforce.build import new_policy
from rolecall.workloads.reinforce.check import check_node
from rolecall.workloads.reinforce.export import record_episode
from rolecall.workloads.reinforce.params import Params


def episode(name):
    environment = creation.make(Environment(id=name))
    seen, _ = environment.reset(seed=3)
    steps, ended = [seen.tolist()], False
    while not ended:
        seen, reward, terminated, truncated, _ = environment.step(len(steps) % 2)
        steps.append([*seen.tolist(), reward])
        ended = terminated or truncated
    return steps


assert episode("gym:CartPole-v1") == episode("CartPole-v1")
limited = creation.make(Environment(id="gym:CartPole-v1", max_episode_steps=1, wrappers=["FlattenObservation"]))
limited.reset(seed=1)
assert limited.step(0)[3]

params = Params.model_validate({"environment": "gym:CartPole-v1", "target_return": "threshold"})
check_node(params, Role.OBSERVER)
assert creation.reward_threshold(params.environment) == 475
policy = new_policy(params, creation.describe(params.environment))
collector = Collector(creation.make_vector(params.environment, 2), lambda: None)
collector.reset([1, 2])
lengths = collector.collect_episodes(lambda seen: policy.sample_actions(seen)[0]).episode_lengths
assert lengths.shape == (2,) and lengths.min() > 5
record_episode(policy, params, Path(sys.argv[1]))
"""
TRAIN = """
import json
import sys
from pathlib import Path

from rolecall.spec.role import Role
from rolecall.testing import run_gang

if __name__ == "__main__":
    params = {
        "environment": "gym:CartPole-v1",
        "environments": 2,
        "algorithm": {"name": "ppo", "steps": 16, "epochs": 1, "minibatch_size": 16},
        "max_updates": 2,
        "evaluation": {"episodes": 2, "movie": False},
    }
    result = run_gang("reinforce", params, {Role.TRAINER: 1, Role.OBSERVER: 1}, Path(sys.argv[1]), timeout_s=60)
    print(json.dumps(result.result))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new virtual environment, which has the packages of this one, and those of the extra."""
    folder = tmp_path_factory.mktemp("old-gym") / "venv"
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "outer.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gym"]
    made = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(made), "install", "--quiet", "--disable-pip-version-check"]
    installed = subprocess.run([*pip, *extra], capture_output=True, text=True, check=False)
    if installed.returncode and "Retrying (Retry(" in installed.stderr:
        pytest.skip("the package index can't be reached")
    assert installed.returncode == 0, installed.stderr
    return made


def run(python: Path, program: str, output: Path) -> str:
    """The output of the program, which gets the path `output`."""
    script = output.with_name("program.py")
    script.write_text(program)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'services'}:{ROOT}"}
    environment.pop("ROLECALL_BUILDERS", None)
    done = subprocess.run([python, script, output], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_environment_of_the_old_gym_needs_only_its_id(python: Path, tmp_path: Path) -> None:
    movie = tmp_path / "episode.gif"
    run(python, PLAY, movie)
    assert movie.stat().st_size > 0


@pytest.mark.slow
def test_a_job_trains_in_an_environment_of_the_old_gym(python: Path, tmp_path: Path) -> None:
    result = json.loads(run(python, TRAIN, tmp_path / "gang"))
    assert result["updates"] == 2
    assert 0 < result["env_steps"] <= 2 * 16 * 2
    assert result["evaluation_return"] > 0
