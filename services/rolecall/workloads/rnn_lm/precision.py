"""Mixed precision: where it applies, on servers and trainers alike."""

import torch

from rolecall.workloads.rnn_lm.params import Params


def mixed(params: Params, device: torch.device) -> torch.autocast:
    """A context in which matrix products are computed in bfloat16, if the job asks for it and the device can."""
    able = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, torch.bfloat16, enabled=able and params.precision == "bfloat16")
