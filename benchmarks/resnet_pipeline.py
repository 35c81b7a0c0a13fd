# pyright: standard
"""`resnet-pipeline`: two stages with one thread each, compared with the ideal pipeline."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks import tutorial_resnet
from benchmarks.contest import Contender, Contest, Floor
from benchmarks.goals import MemoryShareGoal, RateGoal
from benchmarks.processes import Step, alone, gang
from rolecall.kit.params import Sgd
from rolecall.spec.role import Role
from rolecall.workloads.resnet_pipeline.model import build_resnet

BATCH, MICRO_BATCHES, STAGES, PIXELS, CLASSES = 120, 8, 2, 128, 1000
STEPS, SKIPPED = 4, 1


def params(**more: Any) -> dict[str, Any]:
    """ResNet-50 on images of 128 pixels, in 8 micro-batches of 15."""
    return {
        "data": {
            "synthetic": {"images": BATCH * STEPS, "classes": CLASSES},
            "validation": 0.0,
            "size": PIXELS,
            "loader_processes": 0,  # The gang's processes are daemons, which can't start others.
        },
        "model": "resnet50",
        "batch_size": BATCH,
        "micro_batches": MICRO_BATCHES,
        "epochs": 1,
        "optimizer": {"name": "sgd", "lr": 0.05},
        "checkpoint_every_s": None,
        **more,
    }


def one_thread(_folder: Path) -> Step:
    """Plain PyTorch: forward and backward passes of one micro-batch, in channels last."""
    model = build_resnet("resnet50", CLASSES, "batch").to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=Sgd(name="sgd", lr=0.05).lr)
    images = torch.randn(BATCH // MICRO_BATCHES, 3, PIXELS, PIXELS).to(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (BATCH // MICRO_BATCHES,))
    done = 0

    def step() -> None:
        nonlocal done
        F.cross_entropy(model(images), labels).backward()
        done += 1
        if done % MICRO_BATCHES == 0:
            optimizer.step()
            optimizer.zero_grad()

    return step


def whole_batch(_folder: Path) -> Step:
    """Plain PyTorch: a step with all images at once, whose peak memory is the one to compare stages with."""
    model = build_resnet("resnet50", CLASSES, "batch").to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=Sgd(name="sgd", lr=0.05).lr)
    images = torch.randn(BATCH, 3, PIXELS, PIXELS).to(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (BATCH,))

    def step() -> None:
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _own_program() -> Any:
    steps = {
        "batch_size": BATCH,
        "micro_batches": MICRO_BATCHES,
        "size": PIXELS,
        "classes": CLASSES,
        "steps": STEPS - 1,
    }
    roles = {Role.MASTER: 1, Role.STAGE: STAGES}
    return gang(tutorial_resnet.WORKLOAD, steps, roles, reporter="master-0", skipped=SKIPPED)


def _gang(**more: Any) -> Any:
    roles = {Role.MASTER: 1, Role.STAGE: STAGES}
    return gang("resnet-pipeline", params(**more), roles, reporter="master-0", skipped=SKIPPED)


_FULL = STAGES * MICRO_BATCHES / (MICRO_BATCHES + STAGES - 1)

_FLOPS_PER_IMAGE = 3 * 2 * 4.09e9 * (PIXELS / 224) ** 2
"""ResNet-50 multiplies and adds 4.09 billion times per image of 224 pixels [He et al. 2015, table 1 counts 3.8 billion
for the variant with strides in the first convolutions]; the backward pass takes twice the forward pass."""

CONTESTS = (
    Contest(
        title="resnet-pipeline",
        unit="images",
        work=f"ResNet-50, {PIXELS} pixels, {BATCH} images in {MICRO_BATCHES} micro-batches, {STAGES} stages of one "
        f"thread; the ideal is {_FULL:.2f} times one thread",
        contenders=[
            Contender(
                "ideal",
                alone(one_thread, 9, units_per_step=BATCH / MICRO_BATCHES, skipped=SKIPPED, threads=1, scale=_FULL),
                is_limit=True,
            ),
            Contender("one process", alone(whole_batch, 2, units_per_step=BATCH, skipped=SKIPPED)),
            Contender("tutorial's own program", _own_program()),
            Contender("tutorial protocol", _gang(protocol="tutorial")),
            Contender("1F1B", _gang()),
            Contender("1F1B in bfloat16", _gang(precision="bfloat16")),
        ],
        goals=[
            RateGoal("1F1B", 0.92, "ideal"),
            RateGoal("1F1B", 1.15, "tutorial protocol"),
            RateGoal("1F1B", 1.15, "tutorial's own program"),
            MemoryShareGoal("1F1B", Role.STAGE, 0.6, "one process"),
        ],
        floor=Floor(BATCH, BATCH * _FLOPS_PER_IMAGE, 0.0, "convolutions"),
        rounds=2,
    ),
)
