"""The recorded phases of the workers' recent steps, and the requests to running workers. Values only."""

from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import Field

from rolecall.spec.bounds import MAX_BIGINT, MAX_INTEGER, Moment
from rolecall.spec.model import Value

Category = Literal["data", "compute", "communication", "wait", "checkpoint", "evaluation"]
"""The kinds of phases: reading input; arithmetic; transfers and calls; idling until a peer is done;
writing checkpoints; evaluating the model."""
Activity = Literal[Category, "other"]
"""The activities of a worker: a category; other time, which is before, after and between the steps."""
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)
STEP_CATEGORIES: tuple[Category, ...] = ("data", "compute", "communication", "wait")
"""The categories of which a step consists. `compute` also contains the communication that torch overlaps or hides:
DDP's reduction of gradients, and a backward pass over RPC."""

MAX_SPANS = 6000
"""The spans that a worker keeps, about 100 bytes each when sent."""
MAX_STEPS = 64
"""The steps that a worker keeps."""
WINDOW_BYTES = 1 << 20
"""The maximum size of a worker's window as JSON."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9 _.:/<>-]{0,47}$"
"""The valid names of phases, threads and workers."""

Name = Annotated[str, Field(pattern=NAME)]
Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Time = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
"""Seconds since an arbitrary moment, which the values of a machine share."""
Index = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
StepNumber = Annotated[int, Field(ge=0, le=MAX_BIGINT)]


class Span(NamedTuple):
    """One phase of a worker, in a thread of it. Nested phases have spans of their own."""

    name: Name
    category: Category
    begin_s: Time
    seconds: Seconds
    step: StepNumber | None
    stage: Index | None
    """The virtual stage, in a pipeline."""
    micro_batch: Index | None
    thread: Name


class Step(NamedTuple):
    """One step of a worker."""

    number: StepNumber
    begin_s: Time
    seconds: Seconds


class Window(Value):
    """The phases of a worker's recent steps, oldest first. The machine's monotonic clock gives the times."""

    at: Moment
    """The worker's wall clock when the window was read."""
    clock_s: Time
    """The machine's monotonic clock at the same moment."""
    steps: Annotated[tuple[Step, ...], Field(max_length=MAX_STEPS, fail_fast=True)] = ()
    """The completed steps."""
    spans: Annotated[tuple[Span, ...], Field(max_length=MAX_SPANS, fail_fast=True)] = ()
    cut: bool = False
    """True if spans of the oldest steps are missing, because a worker keeps and sends a bounded number."""
