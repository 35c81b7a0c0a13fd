# pyright: standard
"""`transformer-pipeline`: schedules on two stages with one thread each, compared with one process."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.contest import Contender, Contest, Floor
from benchmarks.goals import BubbleGoal, MemoryShareGoal, RateGoal
from benchmarks.processes import Step, alone, gang
from rolecall.spec.role import Role
from rolecall.workloads.transformer_pipeline.build import build_decoder, decoder_shape
from rolecall.workloads.transformer_pipeline.params import Params

BATCH, CONTEXT, VOCABULARY = 32, 128, 4096
LAYERS, DIM = 8, 256
STEPS, SKIPPED = 8, 2
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble")


def params(**more: Any) -> dict[str, Any]:
    """8 layers of 256, and 32 sequences of 128 tokens in 8 micro-batches."""
    tokens = (CONTEXT + 1) * BATCH * (STEPS + 1)
    return {
        "text": {"synthetic": {"tokens": tokens, "vocabulary": VOCABULARY, "source": "markov"}, "validation": 0.0},
        "context": CONTEXT,
        "layers": LAYERS,
        "dim": DIM,
        "batch_size": BATCH,
        "micro_batches": 8,
        "epochs": 1,
        "max_steps": STEPS,
        "checkpoint_every_s": None,
        "sample": {"tokens": 1},
        **more,
    }


def whole_model(own: Params) -> torch.nn.Module:
    """The model of all stages."""
    shape, cpu = decoder_shape(own, VOCABULARY), torch.device("cpu")
    return build_decoder(shape, None, seed=0, dtype=torch.float32, device=cpu, make_layer=None)


def one_process(_folder: Path) -> Step:
    """Plain PyTorch: the whole model and the whole batch."""
    own = Params.model_validate(params())
    model = whole_model(own)
    optimizer = torch.optim.AdamW(model.parameters(), lr=own.optimizer.lr, fused=True)
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def _gang(schedule: str) -> Any:
    return gang(
        "transformer-pipeline",
        params(schedule=schedule),
        {Role.STAGE: 2},
        reporter="stage-1",
        skipped=SKIPPED,
    )


_MATRICES = LAYERS * (4 * DIM**2 + 2 * DIM * 4 * DIM) + DIM * VOCABULARY
"""The weights of attention, of the perceptrons, whose hidden layer is four times as wide, and of the output."""
_FLOPS = 6 * BATCH * CONTEXT * (_MATRICES + LAYERS * CONTEXT * DIM)
"""Forward pass and twice as much backward, each with a product and a sum; attention reads half of the context twice."""

CONTESTS = (
    Contest(
        title="transformer-pipeline",
        unit="samples",
        work=f"8 layers of 256, context {CONTEXT}, {BATCH} samples in 8 micro-batches, two stages of one thread; "
        "GPipe is the schedule of the PyTorch tutorial",
        contenders=[
            Contender("one process", alone(one_process, STEPS, units_per_step=BATCH, skipped=SKIPPED), is_limit=True),
            *(Contender(schedule, _gang(schedule)) for schedule in SCHEDULES),
        ],
        goals=[
            *(RateGoal(schedule, 1.05, "one process") for schedule in SCHEDULES),
            *(BubbleGoal(schedule, 4) for schedule in SCHEDULES),
            *(BubbleGoal(schedule, 4, "measured") for schedule in SCHEDULES),
            *(MemoryShareGoal(schedule, Role.STAGE, 0.6, "one process") for schedule in SCHEDULES),
        ],
        floor=Floor(
            BATCH, _FLOPS, 7 * 4 * (_MATRICES + VOCABULARY * DIM), "matrix products; AdamW's passes over weights"
        ),
    ),
)
