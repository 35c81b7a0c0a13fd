"""The life of a worker from its fork until the master has its complete output."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

from rolecall.node.fork_client import EndNotReported, ForkClient, ForkedWorker, ForkRefused, ForkServerDied
from rolecall.node.shipping import Shipper
from rolecall.node.worker_process import WorkerProcess
from rolecall.spec.fork import ForkRequest

_TICK_S = 0.05
_MAX_LOG_DELAY_S = 0.5
"""The maximum delay of the report of a worker's end by the rest of its log."""


async def attend(
    worker: WorkerProcess,
    request: Callable[[], ForkRequest],
    forks: ForkClient,
    shipper: Shipper,
    exits: Counter[str],
) -> None:
    """Fork the worker, observe it, send its output, report its end and count it in `exits`.

    The gang and its slots depend on the report. It follows the worker's progress, which contains the result, but waits
    neither for a long log nor for progress that an available master fails to store.
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
        async with asyncio.timeout(_MAX_LOG_DELAY_S):
            await shipper.ship_all(worker.log)
    worker.finish(state, failure, exit_code)
    await shipper.ship_all(worker.log)


async def _watch(worker: WorkerProcess, process: ForkedWorker, shipper: Shipper) -> int:
    """Observe the worker until it ends. Its output is sent in parallel, because the master may be unavailable."""
    shipping = asyncio.ensure_future(shipper.keep_shipping((worker.progress, worker.log)))
    try:
        while not process.ended.done():
            worker.observe()
            await asyncio.wait({process.ended, shipping}, timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED)
            if shipping.done():
                shipping.result()  # Raises: shipping ends only by an error.
        return process.ended.result()
    finally:
        shipping.cancel()
        await asyncio.wait({shipping})
        worker.observe()
