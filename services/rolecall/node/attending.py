"""A worker's life: it is forked, watched until it ends, and what it wrote is with the master."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

from rolecall.node.fork_client import EndNotReported, ForkClient, ForkedWorker, ForkRefused, ForkServerDied
from rolecall.node.shipping import Shipper
from rolecall.node.worker_process import WorkerProcess
from rolecall.spec.fork import ForkRequest

_TICK_S = 0.05
_LOG_FIRST_S = 0.5
"""How long the report of a worker's end may wait for the rest of its log."""


async def see_through(
    worker: WorkerProcess,
    request: Callable[[], ForkRequest],
    forks: ForkClient,
    shipper: Shipper,
    exits: Counter[str],
) -> None:
    """Fork the worker, watch it, send what it writes, report how it ended and count that in `exits`.

    The report follows the worker's progress, which holds its result, but it waits neither for a long log nor for
    progress that a master in contact fails to take: the gang and its slots depend on it.
    """
    exit_code: int | None = None
    try:
        worker.make_folder()
        process = await forks.fork(request())
        worker.forked(process.pid)
        exit_code = await _watch(worker, process, shipper)
        state, failure = worker.ended(exit_code)
    except (EndNotReported, ForkRefused, ForkServerDied, OSError) as error:
        state, failure = worker.lost(str(error))
    exits[state if failure is None else "failed"] += 1
    await shipper.ship_all(worker.progress)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LOG_FIRST_S):
            await shipper.ship_all(worker.log)
    worker.finish(state, failure, exit_code)
    await shipper.ship_all(worker.log)


async def _watch(worker: WorkerProcess, process: ForkedWorker, shipper: Shipper) -> int:
    """Observe the worker until it ends. What it writes is sent beside, because the master may be away."""
    shipping = asyncio.ensure_future(shipper.keep_shipping((worker.progress, worker.log)))
    try:
        while not process.ended.done():
            worker.observe()
            await asyncio.wait({process.ended, shipping}, timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED)
            if shipping.done():
                shipping.result()  # It ends by an error alone.
        return process.ended.result()
    finally:
        shipping.cancel()
        await asyncio.wait({shipping})
        worker.observe()
