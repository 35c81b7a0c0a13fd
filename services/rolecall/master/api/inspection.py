"""The routes that look into the workers of a job: timeline, stacks, profile; and the route for the workers' answers."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from rolecall.kit.pictures import pipeline_svg, timeline_svg
from rolecall.kit.pipeline_steps import newest_step
from rolecall.master.api.auth import USERS, Caller, Running, controls_job, needs, sees_job
from rolecall.master.api.error_handlers import documented
from rolecall.master.api.parameters import JobId
from rolecall.master.inspections import NodeReply, parse_answer
from rolecall.master.program import Master
from rolecall.master.store import jobs, workers
from rolecall.master.store import nodes as node_store
from rolecall.master.store.records import WorkerRecord
from rolecall.master.streams import StreamKey
from rolecall.master.timelines import RecordedWindow, newest_spans, silent, timeline, trace, without_schedule
from rolecall.spec.access import Scope
from rolecall.spec.bounds import MAX_BIGINT, MAX_INTEGER
from rolecall.spec.errors import Conflict, NotFound
from rolecall.spec.inspection import (
    ANSWER_BYTES,
    Answer,
    ClockReading,
    Profiled,
    ProfileDocument,
    ProfileRequest,
    Silent,
    StacksDocument,
    TimelineDocument,
    TraceDocument,
    WorkerStacks,
)
from rolecall.spec.model import parse_untrusted
from rolecall.spec.timeline import MAX_STEPS, Window

router = APIRouter(prefix="/jobs/{job}", tags=["inspection"])
internal_router = APIRouter(prefix="/internal/jobs/{job}", tags=["attempts"], dependencies=[Depends(needs(Scope.NODE))])
_SEES = [Depends(needs(*USERS)), Depends(sees_job)]
_CONTROLS = [Depends(needs(Scope.SUBMIT, Scope.ADMIN)), Depends(controls_job)]
_MAX_SPANS = 100_000
"""Of a timeline, which thus takes about 130 MiB, and seconds of a thread. The workers get equal shares."""
_SVG_STEPS = 3
_LEFT_NOTHING = "it left no timeline: it was killed, or has not run"
Format = Literal["json", "trace", "svg", "schedule"]


@router.get(
    "/timeline",
    dependencies=_SEES,
    summary="Show what the workers did in their recent steps",
    response_model=TimelineDocument | TraceDocument,
    responses={200: {"content": {"image/svg+xml": {"schema": {"type": "string"}}}}, **documented(409)},
)
async def show_timeline(  # noqa: PLR0917 - the framework passes by name
    job: JobId,
    master: Running,
    caller: Caller,
    format: Annotated[
        Format,
        Query(
            description="`trace` is Chrome's trace format, which Perfetto opens; `svg` is a picture; `schedule` is a "
            "picture of the newest step of a pipeline and of its schedule in theory."
        ),
    ] = "json",
    attempt: Annotated[int | None, Query(ge=1, le=MAX_INTEGER, description="The newest by default.")] = None,
    steps: Annotated[
        int | None,
        Query(ge=1, le=MAX_STEPS, description="The number of newest steps; by default all, and 3 in a picture."),
    ] = None,
) -> Response:
    """Return what each worker did in its recent steps, such as computing, waiting and sending.

    Running workers send their newest steps. The response lists workers that don't answer in time, with the reason.
    Ended workers leave their last steps, unless they were killed. Each worker of a large gang shows fewer phases: its
    newest ones.
    """
    record, members = await _members(master, job, attempt)
    live = record.state.holds_slots and members[0].attempt == record.attempt
    asked = {member.rank: member for member in members if live and not member.state.ended}
    replies = await master.inspections.ask("timeline", record.owner, list(asked.values()))
    chosen = steps or (_SVG_STEPS if format == "svg" else None)
    async with master.database.read() as connection:
        nodes = (await node_store.load(connection, {member.node for member in members})).known
    machines = {name: node.spec.machine.boot_id for name, node in nodes.items()}

    def render() -> tuple[bytes, str]:
        count = max(1, _MAX_SPANS // len(members))
        found = [
            _recorded(member, replies.get(member.rank), count) if member.rank in asked else _left(master, member, count)
            for member in members
        ]
        recorded = [one for one in found if isinstance(one, RecordedWindow)]
        missing = [one for one in found if isinstance(one, Silent)]
        number, now = members[0].attempt, master.clock.now()
        document = timeline(job, number, recorded, missing, machines, now=now, steps=chosen, live=bool(asked))
        if format == "schedule":
            step = newest_step(document)
            if step is None:
                raise Conflict(f"job {job} {without_schedule(members, live=bool(asked))}")
            return pipeline_svg(step, f"{job}, step {step.number}").encode(), "image/svg+xml"
        if format == "svg":
            return timeline_svg(document).encode(), "image/svg+xml"
        if format == "trace":
            return trace(document).encode(), "application/json"
        return document.model_dump_json().encode(), "application/json"

    # In a thread, because thousands of spans take long.
    body, kind = await master.chart_threads.run(caller.name, render)
    return Response(body, media_type=kind)


@router.post(
    "/stacks", dependencies=_CONTROLS, summary="Show the stack traces of the workers", responses=documented(409)
)
async def show_stacks(job: JobId, master: Running) -> StacksDocument:
    """Return the stack traces of all Python threads of the running workers.

    A worker answers even while it waits for another one. The response lists workers that don't answer in time, for
    example because they are stopped, with the reason.
    """
    owner, members = await _running(master, job)
    answers = _answers(members, await master.inspections.ask("stacks", owner, members))
    found = [WorkerStacks(**_identity(one), threads=given.stacks) for one, given in answers if given.stacks is not None]
    missing = [silent(one, _reason(given)) for one, given in answers if given.stacks is None]
    return StacksDocument(job=job, attempt=members[0].attempt, workers=tuple(found), silent=tuple(missing))


@router.post(
    "/profile", status_code=202, dependencies=_CONTROLS, summary="Profile running workers", responses=documented(409)
)
async def start_profile(job: JobId, request: ProfileRequest, master: Running) -> ProfileDocument:
    """Record the next steps of some workers with `torch.profiler`.

    The response lists the workers that record, each with the artifact that it stores after these steps. An event of the
    job reports when the artifact is stored.
    """
    owner, members = await _running(master, job)
    members = [
        member
        for member in members
        if member.role_rank == (request.role_rank or 0)
        and (member.role.computes if request.role is None else member.role is request.role)
    ]
    if not members:
        raise NotFound(f"job {job} has no running worker of this role and rank")
    answers = _answers(members, await master.inspections.ask("profile", owner, members, request.steps))
    found = [
        Profiled(**_identity(one), artifact=given.artifact) for one, given in answers if given.artifact is not None
    ]
    missing = [silent(one, _reason(given)) for one, given in answers if given.artifact is None]
    return ProfileDocument(job=job, attempt=members[0].attempt, workers=tuple(found), silent=tuple(missing))


@internal_router.put(
    "/attempts/{attempt}/ranks/{rank}/inspections/{number}", status_code=204, summary="Answer an inspection"
)
async def put_answer(  # noqa: PLR0917 - the framework passes by name
    job: JobId,
    attempt: Annotated[int, Path(ge=1, le=MAX_INTEGER)],
    rank: Annotated[int, Path(ge=0, le=MAX_INTEGER)],
    number: Annotated[int, Path(ge=1, le=MAX_BIGINT)],
    request: Request,
    master: Running,
    silent_because: Annotated[str, Query(alias="silent", max_length=1000)] = "",
    offset_s: Annotated[float | None, Query(allow_inf_nan=False)] = None,
    uncertainty_s: Annotated[float | None, Query(ge=0, allow_inf_nan=False)] = None,
) -> None:
    """Pass on a worker's answer, or the reason why there is none. Answers to no request are ignored."""
    worker = (job, attempt, rank)
    if not master.inspections.expects(worker, number):
        return
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > ANSWER_BYTES:
            silent_because = f"its answer has more than {ANSWER_BYTES} bytes"
            break
    given = Answer(error=silent_because) if silent_because else await asyncio.to_thread(parse_answer, body)
    clock = (
        None
        if offset_s is None or uncertainty_s is None
        else ClockReading(offset_s=offset_s, uncertainty_s=uncertainty_s)
    )
    master.inspections.receive(worker, number, NodeReply(given, clock))


async def _members(master: Master, job: str, attempt: int | None) -> tuple[jobs.JobSummary, list[WorkerRecord]]:
    async with master.database.read() as connection:
        record = await jobs.summary(connection, job)
        members = await workers.of_attempt(connection, job, attempt or record.attempt)
    if not members:
        raise Conflict(f"job {job} has no attempt yet: it {record.state.predicate}")
    return record, members


async def _running(master: Master, job: str) -> tuple[str, list[WorkerRecord]]:
    """The owner of a job and the workers of its current attempt that have not ended.

    Raises `Conflict` if there are none.
    """
    record, members = await _members(master, job, None)
    running = [member for member in members if not member.state.ended]
    if not record.state.holds_slots or not running:
        raise Conflict(f"job {job} has no running workers: it {record.state.predicate}")
    return record.owner, running


def _answers(members: Sequence[WorkerRecord], replies: Mapping[int, NodeReply]) -> list[tuple[WorkerRecord, Answer]]:
    return [(member, _answer(replies.get(member.rank))) for member in members]


def _recorded(member: WorkerRecord, reply: NodeReply | None, count: int) -> RecordedWindow | Silent:
    """The newest `count` spans of a running worker's window."""
    given = _answer(reply)
    if reply is None or given.window is None:
        return silent(member, _reason(given))
    return RecordedWindow(member, newest_spans(given.window, count), reply.clock)


def _left(master: Master, member: WorkerRecord, count: int) -> RecordedWindow | Silent:
    """The newest `count` spans of the last window of an ended worker. Blocks."""
    body = master.streams.read_timeline(StreamKey(member.job, member.attempt, member.rank, "timeline"))
    if not body:
        return silent(member, _LEFT_NOTHING)
    try:
        return RecordedWindow(member, newest_spans(parse_untrusted(Window, body), count))
    except ValueError:
        return silent(member, "the timeline that it left can't be read")


def _answer(reply: NodeReply | None) -> Answer:
    return Answer(error="it started after the request; try again") if reply is None else reply.answer


def _reason(answer: Answer) -> str:
    return answer.error or "its answer is empty"


def _identity(member: WorkerRecord) -> dict[str, Any]:
    return {"rank": member.rank, "role": member.role, "role_rank": member.role_rank, "node": member.node}
