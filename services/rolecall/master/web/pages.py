"""The pages and the parts of them that htmx reloads."""

import json
import mimetypes
from functools import cache, partial
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from rolecall.master.api.auth import USERS, Caller, Running, needs
from rolecall.master.api.error_handlers import ErrorHandler
from rolecall.master.api.gate import admission_of, wants_page
from rolecall.master.goodput import MEANINGS
from rolecall.master.program import Master, master_of, program_of
from rolecall.master.web.api import Api, ApiError
from rolecall.master.web.format import about_parameter, for_browser
from rolecall.master.web.render import STATIC, lacks_libraries, render
from rolecall.master.web.view import (
    MainValue,
    by_node,
    cluster_view,
    declaration,
    declared_metrics,
    figures,
    main_value,
    mean_goodput,
    readable,
    run_time_s,
    seat_labels,
    without,
)
from rolecall.spec.access import Scope
from rolecall.spec.api import (
    ArtifactList,
    CheckpointList,
    EventList,
    JobPage,
    NodeList,
    WorkloadDocument,
    WorkloadList,
)
from rolecall.spec.comparison import OTHER_WORKLOADS, Row, differences, have_one_workload
from rolecall.spec.event_order import in_order
from rolecall.spec.job import JobDocument, JobOverview
from rolecall.spec.state import JobState

router = APIRouter(include_in_schema=False, dependencies=[Depends(needs(*USERS))])
static_router = APIRouter(include_in_schema=False)
_JOBS = 50
_RECENT_JOBS = 10
_MAX_COMPARED = 8
_MAX_DIFFERENCES = 500
_HOUR_S = 3600


@router.get("/")
async def overview(request: Request, caller: Caller, state: JobState | None = None) -> Response:
    return await _overview(request, "overview.html", caller, state)


@router.get("/ui")
@router.get("/ui/jobs")
async def other_addresses() -> Response:
    """Lead from addresses that users guess to the overview."""
    return RedirectResponse("/", 303)


@router.get("/ui/overview")
async def overview_part(request: Request, caller: Caller, state: JobState | None = None) -> Response:
    return await _overview(request, "parts/overview.html", caller, state)


@router.get("/ui/submit")
async def submit(
    request: Request,
    caller: Caller,
    clone: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """The form for a new job. Its fields come from the workload's JSON schema, in the browser."""
    api = Api(request)
    workloads = await api.get(WorkloadList, "workloads")
    recent = await api.get(JobPage, "jobs", query={"limit": _RECENT_JOBS})
    return render(
        request,
        "submit.html",
        caller=caller,
        workloads=workloads.workloads,
        recent=recent.jobs,
        may_submit=not caller.scopes.isdisjoint({Scope.SUBMIT, Scope.ADMIN}),
    )


@router.get("/ui/jobs/{job}")
async def job_page(job: str, request: Request, caller: Caller) -> Response:
    return await _job(request, "job.html", job, caller)


@router.get("/ui/jobs/{job}/status")
async def job_part(job: str, request: Request, caller: Caller) -> Response:
    return await _job(request, "parts/job.html", job, caller)


@router.get("/ui/jobs/{job}/picture")
async def job_picture(job: str, request: Request, *, pipeline: bool = False) -> Response:
    """The picture of the newest steps, in the first format that the job has; null if it has none yet.

    A pipeline has a schedule once a step is complete. The browser can't know that, and its console would report the
    API's answer 409 as an error.
    """
    api = Api(request)
    for format in ("schedule", "svg") if pipeline else ("svg",):
        try:
            picture = await api.text("jobs", job, "timeline", query={"format": format})
        except ApiError as error:
            if error.status != 409:
                raise
            continue
        if "<g>" in picture:
            return JSONResponse({"format": format, "svg": picture})
    return JSONResponse(None)


@router.get("/ui/compare")
async def compare(
    request: Request,
    caller: Caller,
    master: Running,
    job: Annotated[list[str] | None, Query(max_length=_MAX_COMPARED)] = None,
) -> Response:
    """The curves of several jobs in one chart, and the parameters in which they differ."""
    api = Api(request)
    jobs = [await api.get(JobDocument, "jobs", one) for one in dict.fromkeys(job or ())]
    workloads = {name: await _workload(api, name) for name in dict.fromkeys(one.workload for one in jobs)}
    schemas = {name: one.params for name, one in workloads.items() if one}

    def compare() -> tuple[list[Row], int]:
        found = differences(jobs, schemas)
        return [readable(row) for row in found[:_MAX_DIFFERENCES]], max(0, len(found) - _MAX_DIFFERENCES)

    rows, omitted = await master.chart_threads.run(caller.name, compare)
    recent = await api.get(JobPage, "jobs", query={"limit": _JOBS})
    return render(
        request,
        "compare.html",
        caller=caller,
        jobs=jobs,
        names={one.id: one.name for one in jobs},
        recent=recent.jobs,
        rows=rows,
        omitted=omitted,
        hint="" if have_one_workload(jobs) else OTHER_WORKLOADS,
        metrics=declared_metrics(workloads.values()),
        most=_MAX_COMPARED,
    )


@static_router.get("/ui/static/{path:path}")
async def static(path: str) -> Response:
    """A script or style. Only names that the package has are served."""
    content = _static_files().get(path)
    if content is None:
        missing = lacks_libraries() if path.startswith("vendor/") else ""
        raise HTTPException(404, missing or None)
    media_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
    headers = {"Cache-Control": f"public, max-age={_HOUR_S}"}
    return Response(content, headers=headers, media_type=media_type)


@cache
def _static_files() -> dict[str, bytes]:
    """The files by name. They are small, and everyone can request them, so they are read once."""
    found = {one.name: one.read_bytes() for one in STATIC.iterdir() if one.is_file()}
    if lacks_libraries():
        return found
    vendor = STATIC / "vendor"
    wanted = (one for one in vendor.iterdir() if one.name.endswith((".js", ".css")))
    return found | {f"vendor/{one.name}": one.read_bytes() for one in wanted}


async def show_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _error_page(request, error.status, str(error))


def as_page(on_error: ErrorHandler) -> ErrorHandler:
    """A handler that answers with a page if a browser requests one, otherwise with the problem document."""

    async def show(request: Request, error: Exception) -> Response:
        problem = await on_error(request, error)
        if not wants_page(request.scope):
            return problem
        document = json.loads(bytes(problem.body))
        wrong = [for_browser(about_parameter(one)) for one in document.get("errors", ())]
        page = _error_page(request, problem.status_code, " ".join(wrong) or document["detail"])
        for name, value in problem.headers.items():
            page.headers.setdefault(name, value)
        return page

    return show


def _error_page(request: Request, status: int, detail: str) -> Response:
    # A master that has lost its leadership can't check the token any more. Its page has no menu.
    caller = admission_of(request.scope).caller if program_of(request.app).master else None
    page = render(request, "error.html", status=status, caller=caller, detail=for_browser(detail))
    # The response to a defect passes no middleware, which would set this.
    page.headers["Cache-Control"] = "no-store"
    return page


async def _overview(request: Request, template: str, caller: Caller, state: JobState | None) -> Response:
    api = Api(request)
    nodes = await api.get(NodeList, "nodes")
    queue = await api.get(JobPage, "jobs", query={"state": "queued", "order": "queue", "limit": _JOBS})
    jobs = await api.get(JobPage, "jobs", query={"limit": _JOBS} | ({"state": state.value} if state else {}))
    running = jobs
    if state is not JobState.RUNNING and (state or jobs.next_cursor):  # Not all running jobs are in the list.
        running = await api.get(JobPage, "jobs", query={"state": "running", "limit": _JOBS})
    return render(
        request,
        template,
        caller=caller,
        cluster=cluster_view(nodes.nodes),
        seat_labels=seat_labels([*jobs.jobs, *running.jobs]),
        goodput=mean_goodput(running.jobs),
        main_value=partial(_main_value, master_of(request.app)),
        most=_JOBS,
        queue=queue.jobs,
        more_queued=queue.next_cursor is not None,
        jobs=jobs.jobs,
        more=jobs.next_cursor is not None,
        state=state,
        states=list(JobState),
    )


def _main_value(master: Master, job: JobOverview) -> MainValue | None:
    workload = master.catalogue.workloads.get(job.workload)
    return main_value(job.progress, workload.metrics if workload else ())


async def _job(request: Request, template: str, job: str, caller: Caller) -> Response:
    api = Api(request)
    document = await api.get(JobDocument, "jobs", job)
    workload = await _workload(api, document.workload)
    metrics = declared_metrics([workload])
    return render(
        request,
        template,
        caller=caller,
        job=document,
        may_control=caller.controls(document.owner),
        workload=workload,
        metrics=metrics,
        losses=MEANINGS,
        declared=partial(declaration, metrics),
        by_node=by_node,
        run_time_s=run_time_s,
        figures=figures,
        without=without,
        events=in_order((await api.get(EventList, "jobs", job, "events")).events)[::-1],
        checkpoints=(await api.get(CheckpointList, "jobs", job, "checkpoints")).checkpoints,
        artifacts=(await api.get(ArtifactList, "jobs", job, "artifacts")).artifacts,
    )


async def _workload(api: Api, name: str) -> WorkloadDocument | None:
    """The workload, or None if its package is no longer installed."""
    try:
        return await api.get(WorkloadDocument, "workloads", name)
    except ApiError as error:
        if error.status != 404:
            raise
        return None
