"""The FastAPI application: routes in, errors out, the loops beside them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from rolecall import __version__
from rolecall.master.api import attempts, cluster, deletion, description, files, jobs, nodes, preflight
from rolecall.master.api.limits import BodyLimit, JobsAreJson
from rolecall.master.api.problem import add_problem_handlers
from rolecall.master.catalogue import Catalogue, load
from rolecall.master.core import open_master
from rolecall.master.signals import Signal
from rolecall.settings import MasterSettings

_ABOUT = "Runs PyTorch training jobs whose processes play different roles. Submit one with `POST /jobs`."


def create_app(settings: MasterSettings, catalogue: Catalogue | None = None) -> FastAPI:
    """The master as an ASGI application; without a catalogue, that of the installed workloads."""
    app = FastAPI(title="Rolecall", version=__version__, description=_ABOUT, lifespan=_lifespan, openapi_url=None)
    app.state.settings = settings
    app.state.catalogue = catalogue or load()
    app.state.news = Signal()
    app.state.changed = Signal(echo=app.state.news)
    for module in (jobs, deletion, files, cluster, preflight, nodes, attempts, description):
        app.include_router(module.router)
    app.include_router(cluster.open_router)
    app.add_middleware(BodyLimit)
    app.add_middleware(JobsAreJson)
    add_problem_handlers(app)
    return app


def release(app: FastAPI) -> None:
    """Answer all calls that are held back, now and from now on: the program is about to end."""
    app.state.changed.close()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    state = app.state
    async with open_master(state.settings, state.catalogue, state.changed, state.news) as master:
        app.state.master = master
        runs = {"reconciler": master.reconciler, "cleaner": master.cleaner, "verifier": master.verifier}
        loops = [asyncio.create_task(part.run(), name=name) for name, part in runs.items()]
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.wait(loops)
