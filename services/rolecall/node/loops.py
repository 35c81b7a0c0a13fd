"""The node's loops, none of which may end the daemon: all workers of the node would end with it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rolecall.logs import about
from rolecall.spec.errors import SettingsError

_LOG = logging.getLogger(__name__)


async def keep_calling(tick: Callable[[], Awaitable[None]], pause_s: float, name: str, *, node: str) -> None:
    """Call `tick`, pause, and so on, until cancelled. `name` is that of the loop in the log, such as `self_check`.

    Logs an error of a call and continues: a job can use up the machine's threads, or a file system can fail. Raises
    only `SettingsError`, which the operator must fix.
    """
    while True:
        try:
            await tick()
        except SettingsError:
            raise
        except Exception:  # noqa: BLE001 - a task that raises would end the daemon
            text = "the node's %s failed; trying again in %g s"
            _LOG.exception(text, name.replace("_", " "), pause_s, extra=about(f"{name}_failed", node=node))
        await asyncio.sleep(pause_s)
