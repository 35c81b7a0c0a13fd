"""The meaning of the parameter `precision` wherever a workload offers it.

`float32` and `float64` are the dtype of weights and arithmetic. `bfloat16` keeps float32 weights and computes in
bfloat16 under `torch.autocast`. A device without bfloat16 is an error, which `kit.params.check_precision` raises before
the gang's rendezvous.
"""

from functools import cache

import torch

from rolecall.kit.params import Precision
from rolecall.spec.errors import InputError


def weight_dtype(precision: Precision) -> torch.dtype:
    """The dtype of weights, and of tensors sent between workers."""
    return torch.float64 if precision == "float64" else torch.float32


def require_precision(precision: Precision, device: torch.device) -> None:
    """Raises `InputError`, with the name of the device, if it does not support `precision`."""
    if precision == "bfloat16" and (lacking := _without_bfloat16(device)) is not None:
        raise InputError(f"{lacking} does not support bfloat16; set precision to float32")


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """The autocast context of forward passes on `device`; raises `InputError` as `require_precision` does."""
    require_precision(precision, device)
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def worker_device() -> torch.device:
    """The device of this worker before it has a context: its GPU, which is the only visible one, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@cache
def _without_bfloat16(device: torch.device) -> str | None:
    """The device's name if it is a GPU without native bfloat16. Every CPU supports it, some by slow emulation."""
    if device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False):
        return None
    return torch.cuda.get_device_name(device)
