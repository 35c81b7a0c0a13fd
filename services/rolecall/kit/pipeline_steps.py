"""A measured step of a pipeline, and the same tasks by the schedule's theory. Pure and torch-free."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast, get_args

from rolecall.kit.pipelining import Kind, PassTimes, Task, TimedTask, bubble, timed
from rolecall.spec.inspection import TimelineDocument, WorkerTimeline
from rolecall.spec.timeline import Span

_KINDS = frozenset(get_args(Kind))
_MAX_TASKS = 20_000
"""Larger steps have no picture: nobody could read it."""


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """One step of one pipeline. All sequences have an element for each rank of the pipeline."""

    number: int
    workers: Sequence[WorkerTimeline]
    spans: Sequence[Sequence[Span]]
    """The spans of each rank from the first to the last task of the step."""
    planned: Sequence[Sequence[TimedTask]]
    """The same tasks in the same order, for equal stages and instant communication."""
    bubble_measured: float
    """The share of the ranks' time, from the first to the last task of the step, without computation."""
    bubble_theory: float
    """The same share of the planned tasks."""
    bubble_simulated: float
    """The same share of a simulation of these tasks with the mean times of each stage's passes and no communication."""


def newest_step(document: TimelineDocument) -> PipelineStep | None:
    """The newest step that all ranks of the first pipeline have completed.

    None if the workers have run no such step. Each rank's tasks count in the order in which they began, so that the
    theory is that of the schedule that ran.
    """
    workers = _first_pipeline(document)
    if len(workers) < 2:
        return None
    steps = [{step.number for step in worker.steps} for worker in workers]
    for number in sorted(set[int].intersection(*steps), reverse=True):
        tasks = [_tasks(worker, number) for worker in workers]
        if sum(map(len, tasks)) <= _MAX_TASKS and (planned := _planned(tasks)):
            return _measured(number, workers, tasks, planned)
    return None


def _first_pipeline(document: TimelineDocument) -> list[WorkerTimeline]:
    """The workers of the first replica: those before the one that has a stage again."""
    pipeline, known = list[WorkerTimeline](), set[int]()
    for worker in document.workers:
        stages = {span.stage for span in worker.spans if span.name in _KINDS and span.stage is not None}
        if stages & known:
            break
        if stages:
            pipeline.append(worker)
            known |= stages
    return pipeline


def _tasks(worker: WorkerTimeline, step: int) -> list[Span]:
    found = [one for one in worker.spans if one.step == step and one.name in _KINDS and _is_of_a_micro_batch(one)]
    return sorted(found, key=lambda span: span.begin_s)


def _is_of_a_micro_batch(span: Span) -> bool:
    """True for passes and losses, which the schedule runs, and not for the optimizer, for example."""
    return span.category == "compute" and span.stage is not None and span.micro_batch is not None


def _planned(tasks: Sequence[Sequence[Span]]) -> list[list[TimedTask]] | None:
    """The tasks with their times in theory; None if some are missing or repeated, as in a window that was cut."""
    order = [[Task(cast(int, s.stage), cast(Kind, s.name), cast(int, s.micro_batch)) for s in row] for row in tasks]
    flat = [task for row in order for task in row]
    passes = {kind: {(task.stage, task.micro_batch) for task in flat if task.kind == kind} for kind in _KINDS}
    is_whole = passes["F"] == passes["B"] | passes["I"] and passes["I"] == passes["W"] and not passes["B"] & passes["I"]
    if not is_whole or len(set(flat)) < len(flat) or not all(order):
        return None
    try:
        return timed(order)
    except ValueError:
        return None


def _measured(
    number: int, workers: Sequence[WorkerTimeline], tasks: Sequence[Sequence[Span]], planned: list[list[TimedTask]]
) -> PipelineStep:
    begin = min(row[0].begin_s for row in tasks)
    end = max(span.begin_s + span.seconds for row in tasks for span in row)
    spans = [
        [one for one in worker.spans if one.begin_s >= begin and one.begin_s + one.seconds <= end] for worker in workers
    ]
    computations = [[one for one in row if _is_of_a_micro_batch(one)] for row in spans]
    busy = sum(map(_covered, computations))
    whole = len(workers) * (end - begin)
    passes = PassTimes()
    for span in (one for row in computations for one in row):
        passes.add(cast(int, span.stage), span.name, span.seconds)
    order = [[one.task for one in row] for row in planned]
    return PipelineStep(
        number,
        workers,
        spans,
        planned,
        bubble_measured=1 - busy / whole if whole else 0.0,
        bubble_theory=bubble(order),
        bubble_simulated=bubble(order, passes.cost),
    )


def _covered(spans: Sequence[Span]) -> float:
    """The seconds that at least one of the spans covers."""
    covered, until = 0.0, float("-inf")
    for span in sorted(spans, key=lambda one: one.begin_s):
        end = span.begin_s + span.seconds
        covered += max(0.0, end - max(until, span.begin_s))
        until = max(until, end)
    return covered
