"""The control program: leads for a term, and runs the loops of its master. `Program` exists as long as the process."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from fastapi import FastAPI

from rolecall.master.assembly import Master, open_master
from rolecall.master.catalogue import Catalogue
from rolecall.master.clock import Clock
from rolecall.master.leadership import Leadership
from rolecall.master.storage_errors import LeadershipLost
from rolecall.master.tracer import open_sender
from rolecall.settings.master import MasterSettings
from rolecall.trackers import mlflow, tensorboard


@dataclass(slots=True, eq=False)
class Program:
    """The state of the process: the master while it leads, and the reason for its end."""

    settings: MasterSettings
    catalogue: Catalogue
    clock: Clock = field(default_factory=Clock)
    master: Master | None = None
    """None while another master leads."""
    fault: BaseException | None = None
    """The reason why the program ends without a signal."""
    stop: Callable[[], None] = lambda: None
    """Called when the program has to end."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is known whether this master leads."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Start, and wait until it is known whether this master leads. A standby serves only `/healthz`."""
        self.settings.data.mkdir(parents=True, exist_ok=True)
        term = asyncio.create_task(self._lead(), name="leadership")
        term.add_done_callback(self._end)
        await self.settled.wait()
        try:
            yield
        finally:
            term.cancel()
            await asyncio.wait({term})

    async def _lead(self) -> None:
        """Wait until no other master leads, then lead until another one takes over."""
        leadership = Leadership(self.settings, self.clock)
        try:
            await leadership.take(waits=self.settled.set)
            async with open_master(self.settings, self.catalogue, leadership, self.clock) as master:
                self.master = master
                loops = [asyncio.create_task(loop.run(), name=name) for name, loop in master.loops.items()]
                loops.append(asyncio.create_task(leadership.watch(master.database, master.term), name="leadership"))
                loops.append(asyncio.create_task(master.lag.run(), name="lag"))
                self.settled.set()
                try:
                    await _await_fault(loops)
                finally:
                    self.master = None
                    master.release()
                    for loop in loops:
                        loop.cancel()
                    await asyncio.wait(loops)
        finally:
            await leadership.release()

    def _end(self, term: asyncio.Task[None]) -> None:
        """End the program when the term is over, unless the program's end is the reason."""
        if not term.cancelled():
            self.fault = term.exception()
            self.stop()
        self.settled.set()


def require_packages(settings: MasterSettings) -> None:
    """Raises `MissingPackage` if an optional package is missing that the settings need."""
    if settings.otlp_endpoint is not None:
        open_sender(settings.otlp_endpoint).close()
    if settings.mlflow_uri is not None:
        mlflow.require_packages()
    if settings.tensorboard_dir is not None:
        tensorboard.require_packages()


class Application(FastAPI):
    """The ASGI application of a program."""

    program: Program


def program_of(app: Any) -> Program:
    """The program of an ASGI application, which Starlette passes without its type."""
    assert isinstance(app, Application)
    return app.program


def master_of(app: Any) -> Master:
    """The master of an ASGI application. Raises `LeadershipLost` while it doesn't lead."""
    master = program_of(app).master
    if master is None:
        raise LeadershipLost("this master does not lead (any more)")
    return master


async def _await_fault(loops: Collection[asyncio.Task[None]]) -> NoReturn:
    """Wait for the first loop to end, which none should, and raise its error."""
    ended, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
    for loop in ended:
        if not loop.cancelled() and (error := loop.exception()) is not None:
            raise error
    names = ", ".join(loop.get_name() for loop in ended)
    raise RuntimeError(f"a loop of the master has ended without an error, so the master exits: {names}")
