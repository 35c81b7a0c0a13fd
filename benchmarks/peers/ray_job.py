# pyright: standard
"""The training with Ray Train, the entry point of `ray job submit`: `python -m benchmarks.peers.ray_job FOLDER`."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import ray.train  # pyright: ignore[reportMissingImports]
import torch
from ray.train.torch import TorchTrainer  # pyright: ignore[reportMissingImports]

from benchmarks.peers.marks import to_file
from benchmarks.peers.training import CHECKPOINT_EVERY, STEPS, Training

_FILE = "weights.pt"


def main() -> None:
    folder = Path(sys.argv[1])
    trainer = TorchTrainer(
        train,
        train_loop_config={"marks": str(folder / "marks")},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            storage_path=str(folder / "storage"), failure_config=ray.train.FailureConfig(max_failures=3)
        ),
    )
    trainer.fit()


def train(config: dict[str, Any]) -> None:
    """One worker, from the newest checkpoint if there is one."""
    training = Training(to_file(Path(config["marks"])))
    done = resume(training)
    for step in range(done + 1, STEPS + 1):
        training.step(step)
        if step % CHECKPOINT_EVERY == 0:
            save(training, step)


def resume(training: Training) -> int:
    """Load the newest checkpoint. Returns its step, or 0 without one."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder) / _FILE)
    training.load(state["weights"])
    return state["step"]


def save(training: Training, step: int) -> None:
    """Report a checkpoint; called by all workers after the same step."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            torch.save({"step": step, "weights": training.weights()}, Path(folder) / _FILE)
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": step}, checkpoint=checkpoint)


if __name__ == "__main__":
    main()
