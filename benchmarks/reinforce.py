"""`reinforce`: PPO compared with Stable-Baselines3 at equal settings, and REINFORCE with the tutorial's protocol."""

import importlib.util
from pathlib import Path
from typing import Any

from benchmarks.contest import Contender, Contest, Goal
from benchmarks.processes import Step, alone, gang
from rolecall.spec.role import Role

ENVIRONMENTS, STEPS_PER_ENVIRONMENT, EPOCHS, MINIBATCH = 16, 128, 10, 256
PER_UPDATE = ENVIRONMENTS * STEPS_PER_ENVIRONMENT
UPDATES, SKIPPED = 24, 4


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


def _gang(params: dict[str, Any]) -> Any:
    counts = {Role.TRAINER: 1, Role.OBSERVER: 2}
    return gang("reinforce", params, counts, reporter="trainer-0", skipped=SKIPPED)


def _peer() -> list[Contender]:
    """Stable-Baselines3, if it is installed; `make bench` installs it."""
    if importlib.util.find_spec("stable_baselines3") is None:
        return []
    run = alone(stable_baselines, UPDATES, units_per_step=PER_UPDATE, skipped=SKIPPED)
    return [Contender("Stable-Baselines3", run, is_limit=True)]


CONTESTS = (
    Contest(
        title="reinforce, PPO",
        unit="steps",
        work=f"CartPole, {ENVIRONMENTS} environments × {STEPS_PER_ENVIRONMENT} steps, {EPOCHS} epochs, minibatches of "
        f"{MINIBATCH}, two observers",
        contenders=[*_peer(), Contender("PPO", _gang(ppo()))],
        goals=[Goal("PPO", 2.5, peer.name) for peer in _peer()],
    ),
    Contest(
        title="reinforce, REINFORCE",
        unit="steps",
        work="CartPole, 256 environments in CartPole's own vectors on each of two observers; the tutorial's protocol "
        "runs one environment on each",
        contenders=[
            Contender("tutorial protocol", _gang(tutorial()), is_limit=True),
            Contender("REINFORCE", _gang(vectors())),
            # Each update has the trajectories of at least one observer, while the other one collects.
            Contender("REINFORCE, wait_for 0.5", _gang(vectors(0.5, 2 * UPDATES))),
        ],
    ),
)
