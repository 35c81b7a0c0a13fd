# pyright: standard
"""`reinforce`: PPO compared with Stable-Baselines3 at equal settings, and REINFORCE with the tutorial's protocol."""

import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import Contender, Contest, Run
from benchmarks.goals import RateGoal
from benchmarks.machine import CORES
from benchmarks.processes import Step, alone, gang, on_cores
from rolecall.spec.report import ProgressLine
from rolecall.spec.role import Role
from rolecall.testing import run_gang

ENVIRONMENTS, STEPS_PER_ENVIRONMENT, EPOCHS, MINIBATCH = 16, 128, 10, 256
PER_UPDATE = ENVIRONMENTS * STEPS_PER_ENVIRONMENT
UPDATES, SKIPPED = 24, 4
TARGET = 475
"""The mean return at which CartPole-v1 counts as solved."""


def ppo() -> dict[str, Any]:
    """PPO on CartPole with 16 environments on two observers."""
    return {
        "environment": "CartPole-v1",
        "environments": ENVIRONMENTS // 2,
        "algorithm": {
            "name": "ppo",
            "steps": STEPS_PER_ENVIRONMENT,
            "epochs": EPOCHS,
            "minibatch_size": MINIBATCH,
            "entropy_coefficient": 0.0,
        },
        "optimizer": {"name": "adam", "lr": 3e-4, "eps": 1e-5},
        "max_updates": UPDATES,
        "evaluation": {"episodes": 1, "every_updates": UPDATES, "movie": False},
        "checkpoint_every_s": None,
    }


def stable_baselines(_folder: Path) -> Step:
    """Stable-Baselines3 with the same network, optimizer and numbers, in one process."""
    from stable_baselines3 import PPO  # noqa: PLC0415 # pyright: ignore - only `make bench` installs it
    from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415 # pyright: ignore

    agent = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=ENVIRONMENTS),
        n_steps=STEPS_PER_ENVIRONMENT,
        n_epochs=EPOCHS,
        batch_size=MINIBATCH,
        device="cpu",
    )

    def step() -> None:
        agent.learn(PER_UPDATE, reset_num_timesteps=False)

    return step


def vectors(wait_for: float = 1.0, updates: int = UPDATES) -> dict[str, Any]:
    """REINFORCE with 256 environments on each of two observers, by CartPole's own vector implementation."""
    return {
        "environment": {"id": "CartPole-v1", "vectorization": "own"},
        "environments": 256,
        "algorithm": "reinforce",
        "wait_for": wait_for,
        "max_updates": updates,
        "evaluation": {"episodes": 1, "every_updates": updates, "movie": False},
        "checkpoint_every_s": None,
    }


def tutorial() -> dict[str, Any]:
    """The PyTorch tutorial's own protocol: an environment on each observer, and two calls per step."""
    return {
        "environment": "CartPole-v1",
        "environments": 1,
        "algorithm": "reinforce",
        "policy_at": "agent",
        "protocol": "tutorial",
        "max_updates": UPDATES,
        "evaluation": {"episodes": 1, "every_updates": UPDATES, "movie": False},
        "checkpoint_every_s": None,
    }


def solve_with_stable_baselines(_folder: Path) -> Step:
    """Stable-Baselines3 with the hyperparameters that its authors tuned for CartPole [RL Baselines3 Zoo, ppo.yml].

    The first step does nothing; the second one trains until 100 episodes have a mean return of `TARGET`.
    """
    from stable_baselines3 import PPO  # noqa: PLC0415 # pyright: ignore - only `make bench` installs it
    from stable_baselines3.common import callbacks  # noqa: PLC0415 # pyright: ignore
    from stable_baselines3.common.env_util import make_vec_env  # noqa: PLC0415 # pyright: ignore

    environments, steps, updates_per_evaluation = 8, 32, 10
    agent = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=environments, seed=0),
        n_steps=steps,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=lambda left: left * 1e-3,
        clip_range=lambda left: left * 0.2,
        device="cpu",
        seed=0,
    )
    evaluate = callbacks.EvalCallback(
        make_vec_env("CartPole-v1", n_envs=environments, seed=10_000),
        callback_on_new_best=callbacks.StopTrainingOnRewardThreshold(TARGET),
        n_eval_episodes=100,
        eval_freq=steps * updates_per_evaluation,
        verbose=0,
    )
    started = False

    def step() -> None:
        nonlocal started
        if started:
            agent.learn(100_000, callback=evaluate)
            assert evaluate.best_mean_reward >= TARGET, "the peer has not solved CartPole"
        started = True

    return step


def _solved(folder: Path) -> Run:
    """The example's job, from the end of its first update to its result."""
    example = json.loads((Path(__file__).parents[1] / "examples/reinforce.json").read_text())
    with on_cores():
        result = run_gang("reinforce", example["params"], {Role.TRAINER: 1, Role.OBSERVER: 2}, folder)
    (progress,) = folder.glob("work/job/1/0/progress.jsonl")
    lines = map(ProgressLine.model_validate_json, progress.read_text().splitlines())
    reported = next(line for line in lines if line.kind == "result")  # It is repeated after the movie.
    seconds = reported.at.timestamp() - (time.time() - time.monotonic()) - result.step_ends["trainer-0"][0]
    assert result.result["evaluation_return"] >= TARGET
    return Run(rate=1 / seconds, step_ms=seconds * 1e3)


def _gang(params: dict[str, Any], threads: int = 1) -> Any:
    """`threads` are those of the agent."""
    counts = {Role.TRAINER: 1, Role.OBSERVER: 2}
    return gang("reinforce", params, counts, reporter="trainer-0", skipped=SKIPPED, threads={Role.TRAINER: threads})


def _peer(run: Callable[[Path], Run]) -> list[Contender]:
    """Stable-Baselines3, if it is installed; `make bench` installs it."""
    is_installed = importlib.util.find_spec("stable_baselines3") is not None
    return [Contender("Stable-Baselines3", run, is_limit=True)] if is_installed else []


_EQUAL = _peer(alone(stable_baselines, UPDATES, units_per_step=PER_UPDATE, skipped=SKIPPED))
_TUNED = _peer(alone(solve_with_stable_baselines, 2, units_per_step=1.0, skipped=1))


CONTESTS = (
    Contest(
        title="reinforce, PPO",
        unit="steps",
        work=f"CartPole, {ENVIRONMENTS} environments × {STEPS_PER_ENVIRONMENT} steps, {EPOCHS} epochs, minibatches of "
        f"{MINIBATCH}, two observers",
        contenders=[*_EQUAL, Contender("PPO", _gang(ppo()))],
        goals=[RateGoal("PPO", 2.5, peer.name) for peer in _EQUAL],
    ),
    Contest(
        title="reinforce, CartPole solved",
        unit="solved jobs",
        work=f"The example's job from its first update until 100 episodes have a mean return of {TARGET}; one step is "
        "all of it. Stable-Baselines3 has the hyperparameters of RL Baselines3 Zoo",
        contenders=[*_TUNED, Contender("examples/reinforce.json", _solved)],
    ),
    Contest(
        title="reinforce, REINFORCE",
        unit="steps",
        work="CartPole, 256 environments in CartPole's own vectors on each of two observers, with two threads for the "
        "agent that waits for both; the tutorial's protocol runs one environment on each",
        contenders=[
            Contender("tutorial protocol", _gang(tutorial()), is_limit=True),
            # The observers wait while the agent learns, so their cores are free.
            Contender("REINFORCE", _gang(vectors(), threads=CORES)),
            # Each update has the trajectories of at least one observer, while the other one collects.
            Contender("REINFORCE, wait_for 0.5", _gang(vectors(0.5, 2 * UPDATES))),
        ],
    ),
)
