"""The training under torchrun, which TorchX's `dist.ddp` starts: `torchrun -m benchmarks.peers.torchx_job FOLDER`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.peers.marks import to_file
from benchmarks.peers.training import CHECKPOINT_EVERY, STEPS, Training


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    training = Training(to_file(folder / "marks"))
    file = folder / "weights.pt"
    done = resume(training, file)
    for step in range(done + 1, STEPS + 1):
        training.step(step)
        if step % CHECKPOINT_EVERY == 0 and dist.get_rank() == 0:
            save(training, step, file)


def resume(training: Training, file: Path) -> int:
    """Load the newest checkpoint. Returns its step, or 0 without one."""
    if not file.exists():
        return 0
    state = torch.load(file)
    training.load(state["weights"])
    return state["step"]


def save(training: Training, step: int, file: Path) -> None:
    """Replace the file in one step, so that a killed worker leaves a whole one."""
    partial = file.with_suffix(".part")
    torch.save({"step": step, "weights": training.weights()}, partial)
    partial.replace(file)


if __name__ == "__main__":
    main()
