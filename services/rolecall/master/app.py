"""The FastAPI application: routes in, errors out, the loops beside them."""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from fastapi import FastAPI

from rolecall import __version__
from rolecall.master.answers import Answers
from rolecall.master.api import (
    attempts,
    audit,
    cluster,
    deletion,
    description,
    files,
    jobs,
    logs,
    nodes,
    preflight,
    tokens,
)
from rolecall.master.api.error_handlers import RESPONSES, SCHEMA, add_problem_handlers
from rolecall.master.api.gate import FollowerLimit, Gate
from rolecall.master.api.limits import BodyLimit, JobsAreJson
from rolecall.master.api.standby import ExitGate, StandbyGate
from rolecall.master.catalogue import Catalogue, load
from rolecall.master.core import open_master
from rolecall.master.leadership import Leadership
from rolecall.master.signals import Signals
from rolecall.settings import MasterSettings

_ABOUT = "Runs PyTorch training jobs whose processes play different roles. Submit one with `POST /jobs`."


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The interface as OpenAPI describes it, with the problem documents that every route may answer with."""
        document = super().openapi()
        document["components"]["schemas"]["Problem"] = SCHEMA
        return document


def create_app(settings: MasterSettings, catalogue: Catalogue | None = None) -> FastAPI:
    """The master as an ASGI application; without a catalogue, that of the installed workloads.

    `state.master` is the running master, None while another one leads. When it has to end by itself `state.fault` says
    why, and `state.stop` is called.
    """
    app = _Application(
        title="Rolecall",
        version=__version__,
        description=_ABOUT,
        lifespan=_lifespan,
        openapi_url=None,
        responses=RESPONSES,
    )
    app.state.settings = settings
    app.state.catalogue = catalogue or load()
    app.state.master = None
    app.state.settled = asyncio.Event()
    app.state.fault = None
    app.state.stop = lambda: None
    app.state.answers = Answers()
    app.state.news = Signals()
    for module in (jobs, deletion, logs, files, cluster, preflight, tokens, audit, nodes, attempts, description):
        app.include_router(module.router)
    app.include_router(cluster.metrics_router)
    app.include_router(cluster.admin_router)
    app.include_router(cluster.open_router)
    app.add_middleware(BodyLimit)
    app.add_middleware(JobsAreJson)
    app.add_middleware(FollowerLimit)
    app.add_middleware(audit.Audited)
    # The last is the first: nobody reads or parses what comes without a token.
    app.add_middleware(Gate)
    app.add_middleware(StandbyGate)
    app.add_middleware(ExitGate)
    add_problem_handlers(app)
    return app


def release(app: FastAPI) -> None:
    """Answer all calls that are held back, now and from now on: the program is about to end."""
    app.state.answers.close()
    app.state.news.close()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Serve as soon as it is known whether this master leads; one that has to wait serves `/healthz` alone."""
    state = app.state
    state.settings.data.mkdir(parents=True, exist_ok=True)
    term = asyncio.create_task(_lead(app), name="leadership")
    term.add_done_callback(lambda ended: _end(app, ended))
    await state.settled.wait()
    try:
        yield
    finally:
        term.cancel()
        await asyncio.wait({term})


async def _lead(app: FastAPI) -> None:
    """Wait until no other master leads, then be the master until another one is."""
    state = app.state
    leadership = Leadership(state.settings)
    try:
        await leadership.take(waits=state.settled.set)
        async with open_master(state.settings, state.catalogue, state.answers, state.news, leadership) as master:
            state.master = master
            parts = {
                "reconciler": master.reconciler,
                "placer": master.placer,
                "cleaner": master.cleaner,
                "verifier": master.verifier,
                "tokens": master.sync,
            }
            loops = [asyncio.create_task(part.run(), name=name) for name, part in parts.items()]
            loops.append(asyncio.create_task(leadership.watch(master.database, master.term), name="leadership"))
            state.settled.set()
            try:
                await _await_fault(loops)
            finally:
                state.master = None
                for loop in loops:
                    loop.cancel()
                await asyncio.wait(loops)
    finally:
        await leadership.release()


async def _await_fault(loops: Collection[asyncio.Task[None]]) -> NoReturn:
    """Wait for the first of the loops that ends, none of which ever should, and raise what ended it."""
    ended, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
    for loop in ended:
        if not loop.cancelled() and (error := loop.exception()) is not None:
            raise error
    names = ", ".join(loop.get_name() for loop in ended)
    raise RuntimeError(f"the master ends because a loop of it has ended without an error: {names}")


def _end(app: FastAPI, term: asyncio.Task[None]) -> None:
    """The term is over: because the program ends, or else that is why it has to end."""
    if not term.cancelled():
        app.state.fault = term.exception()
        app.state.stop()
    app.state.settled.set()
