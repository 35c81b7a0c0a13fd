# pyright: standard
"""The training that all systems run: a small network, data-parallel on the CPU with Gloo, SGD, made-up data.

The losses depend only on the step and the number of workers, so that those of the systems can be compared.
"""

import os
import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.marks import Mark

BATCH = 64
"""Rows of one worker in a step."""
FEATURES = 32
STEPS = 100_000
"""More than a measurement needs; it stops the job."""
CHECKPOINT_EVERY = 20
"""Steps between checkpoints, about a second."""
PAUSE_S = 0.05
"""Pause after each step, so that a step has the length of one of a larger model while the cores are mostly idle."""


class Training:
    """One worker's replica. The process group must exist."""

    def __init__(self, write: Callable[[str], object]) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._write = write
        self._network = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 1))
        self._replica = DistributedDataParallel(self._network)
        self._optimizer = torch.optim.SGD(self._replica.parameters(), lr=0.01)

    def step(self, number: int) -> Tensor:
        """Train on the batch of this step, the first one being 1, and write its mark. Returns this worker's loss."""
        generator = torch.Generator().manual_seed(number * dist.get_world_size() + dist.get_rank())
        inputs = torch.randn(BATCH, FEATURES, generator=generator)
        loss = mse_loss(self._replica(inputs), inputs.sum(1, keepdim=True))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._write(Mark(dist.get_rank(), os.getpid(), number, time.time(), loss.item()).line())
        time.sleep(PAUSE_S)
        return loss.detach()

    def weights(self) -> dict[str, Tensor]:
        """The whole state: SGD without momentum has none of its own."""
        return self._network.state_dict()

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Continue from these weights."""
        self._network.load_state_dict(weights)
