# pyright: reportPrivateUsage=false
"""The main function of a worker that the fork server forks: confined, then on the GPU."""

import json
import os

from rolecall.settings.worker import read_worker
from rolecall.spec.fork import ForkRequest
from rolecall.worker.sandbox import confine


def play(request: ForkRequest) -> int:
    """Compute in the sandbox, and print the findings as JSON."""
    sandbox = confine(request, read_worker())
    import torch

    found: dict[str, object] = {"bad_fork": torch.cuda._is_in_bad_fork(), "confined": bool(sandbox.rules)}
    if os.environ["CUDA_VISIBLE_DEVICES"]:
        from rolecall.runtime.context import own_device

        device = own_device(request.launch.worker)
        matrix = torch.rand(256, 256, device=device, dtype=torch.float64)
        error = (matrix @ matrix.inverse() - torch.eye(256, device=device, dtype=torch.float64)).abs().max()
        found |= {"devices": torch.cuda.device_count(), "error": float(error)}
    print(json.dumps(found))
    return 0
