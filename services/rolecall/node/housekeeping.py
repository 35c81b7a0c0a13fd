"""The node's housekeeping: keeps the cache of prepared inputs to its size, in a thread, now and then."""

import asyncio
import logging
from pathlib import Path

from rolecall.edge.logs import about
from rolecall.kit.cache import evict

EVICT_EVERY_S = 300.0
_LOG = logging.getLogger(__name__)


async def keep_cache(cache: Path, most_bytes: int) -> None:
    """Evict at once and then every `EVICT_EVERY_S` seconds, until cancelled."""
    while True:
        try:
            await asyncio.to_thread(evict, cache, most_bytes)
        except OSError as error:
            _LOG.warning("cache entries in %s could not be evicted: %s", cache, error, extra=about("eviction_failed"))
        await asyncio.sleep(EVICT_EVERY_S)
