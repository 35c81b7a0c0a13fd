"""The exit of the master: it continues to serve while nodes that exit at the same time drain.

Their workers' last checkpoints need a master that records them. A master that exits alone does not wait: jobs continue
without it.
"""

import asyncio
import logging

from rolecall.logs import about
from rolecall.master.program import Master
from rolecall.master.store import jobs, nodes, workers
from rolecall.spec.state import JobState

NOTICE_S = 2.0
"""The time within which a node that exits at the same time reports it."""
_LOOK_EVERY_S = 0.1
_LOG = logging.getLogger(__name__)


async def drain_before_exit(master: Master, grace_s: float) -> None:
    """Place no more jobs, and return when no worker needs this master, or after `grace_s` seconds."""
    master.presence.closing = True
    loop = asyncio.get_running_loop()
    begun = loop.time()
    logged = False
    while (waited_s := loop.time() - begun) < grace_s + NOTICE_S:
        busy, leaving = await _observe(master)
        if not busy or not (leaving or waited_s < NOTICE_S):
            return
        if leaving and not logged:
            message = "shutting down: waiting for the workers of %s to stop"
            _LOG.info(message, ", ".join(busy), extra=about("shutdown_waiting"))
            logged = True
        await asyncio.sleep(_LOOK_EVERY_S)
    message = "exiting after %g s (ROLECALL_STOP_GRACE_S) although workers are still stopping"
    _LOG.warning(message, grace_s, extra=about("shutdown_timed_out"))


async def _observe(master: Master) -> tuple[list[str], bool]:
    """The live nodes that have workers, and whether workers are stopping."""
    async with master.database.read() as connection:
        live_nodes = [node for node in await nodes.list_all(connection) if master.presence.is_alive(node.name)]
        busy = [node for node in live_nodes if await workers.on_node(connection, node.name)]
        stopping = await jobs.in_states(connection, [JobState.STOPPING])
    return [node.name for node in busy], bool(stopping) or any(node.draining for node in busy)
