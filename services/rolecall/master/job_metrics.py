"""The metrics of jobs, while they hold slots and for an hour after their end. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from prometheus_client.core import GaugeMetricFamily

from rolecall.master.goodput import Goodput, Loss
from rolecall.master.history import Running
from rolecall.master.store.records import EndedJob
from rolecall.spec.errors import RolecallError
from rolecall.spec.job import Progress
from rolecall.spec.metric import MetricPlace
from rolecall.spec.state import JobState

KEPT = timedelta(hours=1)
MAX_ENDED = 100
"""The maximum number of jobs that are shown after their end."""
_JOB = ["job", "workload"]
_MEASURED = [*_JOB, "metric", "split"]


@dataclass(frozen=True, slots=True, eq=False)
class JobMetrics:
    """The jobs at one point in time."""

    running: Sequence[Running]
    ended: Sequence[EndedJob]
    goodputs: Mapping[str, Goodput]
    checkpoints: Mapping[str, datetime]
    """The time of the newest checkpoint of running jobs."""
    places: Mapping[str, Mapping[str, MetricPlace]]
    """For each workload, the labels of the metrics that it declares, by reported name."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges of all jobs."""
        yield from _state(self)
        yield from _progress(self.running)
        yield from _declared(self)
        yield from _goodput(self)
        yield from _times(self)

    @property
    def workloads(self) -> dict[str, str]:
        running = {one.job.id: one.job.workload for one in self.running}
        return running | {job.id: job.workload for job in self.ended}


def gauge(name: str, about: str, labels: list[str], values: Iterable[tuple[list[str], float]]) -> GaugeMetricFamily:
    """A family with a value for each combination of labels."""
    family = GaugeMetricFamily(name, about, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def cause_of(reason: str | None) -> str:
    """The class of the error that a job's reason names, if it is one of ours; otherwise `other`, to stay bounded."""
    named = re.findall(r"\b([A-Z]\w+):", reason or "")
    return next((name for name in named if name in _OUR_ERRORS), "other")


def _names(kind: type[Exception]) -> set[str]:
    return {kind.__name__}.union(*(_names(one) for one in kind.__subclasses__() if one.__module__ == kind.__module__))


_OUR_ERRORS = frozenset(_names(RolecallError))


def _state(found: JobMetrics) -> Iterator[GaugeMetricFamily]:
    states = [([one.job.id, one.job.workload, one.job.state.value], 1.0) for one in found.running]
    states += [([job.id, job.workload, job.state.value], 1.0) for job in found.ended]
    about = "1 for the state that the job is in; also for an hour after its end."
    yield gauge("rolecall_job_state", about, [*_JOB, "state"], states)
    failed = (
        ([job.id, job.workload, cause_of(job.reason)], 1.0) for job in found.ended if job.state is JobState.FAILED
    )
    about = "1 for a job that failed in the last hour, by the class of its error."
    yield gauge("rolecall_job_failed", about, [*_JOB, "cause"], failed)


def _progress(running: Sequence[Running]) -> Iterator[GaugeMetricFamily]:
    attempts = (([one.job.id, one.job.workload], one.job.attempt) for one in running)
    named = [([one.job.id, one.job.workload], one.progress) for one in running if one.progress]
    losses = ((who, progress.loss) for who, progress in named if progress.loss is not None)
    speeds = ((who, progress.samples_per_s) for who, progress in named if progress.samples_per_s is not None)
    yield gauge("rolecall_job_attempt", "The running attempt's number.", _JOB, attempts)
    yield gauge("rolecall_job_step", "The newest optimizer step.", _JOB, ((who, one.step) for who, one in named))
    yield gauge("rolecall_job_loss", "The newest training loss.", _JOB, losses)
    yield gauge("rolecall_job_samples_per_second", "Samples trained per second.", _JOB, speeds)


def _declared(found: JobMetrics) -> Iterator[GaugeMetricFamily]:
    newest = [(one.job.id, one.job.workload, _reported(one.progress)) for one in found.running if one.progress]
    newest += [(job.id, job.workload, _reported(job.progress)) for job in found.ended]
    results = [
        (job.id, job.workload, {name: float(value) for name, value in result.items() if isinstance(value, int | float)})
        for job in found.ended
        if (result := job.result)
    ]
    about = "The newest value of a metric that the workload declares; also for an hour after the job's end."
    yield gauge("rolecall_job_metric", about, _MEASURED, _placed(newest, found.places))
    about = "A declared metric in the job's result, for an hour after its end."
    yield gauge("rolecall_job_result", about, _MEASURED, _placed(results, found.places))


def _reported(progress: Progress) -> dict[str, float]:
    return progress.metrics | ({} if progress.loss is None else {"loss": progress.loss})


def _placed(
    jobs: Iterable[tuple[str, str, Mapping[str, float]]], places: Mapping[str, Mapping[str, MetricPlace]]
) -> Iterator[tuple[list[str], float]]:
    """The declared ones of the values by reported name, with their labels."""
    for job, workload, values in jobs:
        for name, place in places.get(workload, {}).items():
            if name in values:
                yield [job, workload, place.metric, place.split.value], values[name]


def _goodput(found: JobMetrics) -> Iterator[GaugeMetricFamily]:
    workloads = found.workloads
    named = [([job, workloads[job]], one) for job, one in found.goodputs.items()]
    about = "Share of the time since submission that went into retained optimizer steps."
    yield gauge("rolecall_job_goodput_ratio", about, _JOB, ((who, one.ratio) for who, one in named))
    lost = (([*who, cause.value], seconds) for who, one in named for cause, seconds in one.lost.items())
    yield gauge(
        "rolecall_job_lost_seconds",
        f"Time that did not go into retained steps, by cause: {', '.join(Loss)}.",
        [*_JOB, "cause"],
        lost,
    )


def _times(found: JobMetrics) -> Iterator[GaugeMetricFamily]:
    submitted = [([one.job.id, one.job.workload], one.job.created_at.timestamp()) for one in found.running]
    about = "When the job was submitted."
    yield gauge("rolecall_job_submitted_timestamp_seconds", about, _JOB, submitted)
    started = [([one.job.id, one.job.workload], one.attempt.started_at.timestamp()) for one in found.running]
    about = "When the running attempt was placed."
    yield gauge("rolecall_job_attempt_started_timestamp_seconds", about, _JOB, started)
    ended = [([job.id, job.workload, job.state.value], job.ended_at.timestamp()) for job in found.ended]
    about = "When the job ended, with its state; for an hour."
    yield gauge("rolecall_job_ended_timestamp_seconds", about, [*_JOB, "state"], ended)
    workloads = found.workloads
    stored = [([job, workloads[job]], at.timestamp()) for job, at in found.checkpoints.items()]
    about = "When the newest checkpoint of the running job was recorded."
    yield gauge("rolecall_job_checkpoint_timestamp_seconds", about, _JOB, stored)
