"""A node's look at itself: measures, and lets `findings` judge."""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rolecall import __version__, landlock, seccomp
from rolecall.node import findings
from rolecall.node.client import MasterClient, MasterUnreachable
from rolecall.node.devices import available_memory
from rolecall.node.findings import GpuInventory, Space
from rolecall.node.network import Way, find_way
from rolecall.settings import NodeSettings, read_worker, readable_secret_files
from rolecall.spec.finding import Finding, secret_files
from rolecall.spec.node import NodeSpec, is_loopback
from rolecall.spec.wire import ClusterInfo

EXAMINE_EVERY_S = 10.0
_SHM = Path("/dev/shm")  # noqa: S108 - measured, not written to


class Sight(NamedTuple):
    """What the master said of itself, and how far its clock is from ours."""

    cluster: ClusterInfo
    offset_s: float
    uncertainty_s: float
    certificate_end: float | None = None
    """When its certificate ends, in seconds since 1970; None without TLS."""


class Examiner:
    """Looks again and again. What the master said last counts while it is away."""

    def __init__(
        self, settings: NodeSettings, client: MasterClient, cards: GpuInventory, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._client = client
        self._cards = cards
        self._clock = clock
        self._sight: Sight | None = None

    async def examine(self, spec: NodeSpec) -> tuple[tuple[Finding, ...], Way | None]:
        """The findings on the node, and its present way to the master, if there is one."""
        # The heartbeat fails as well then, and says so.
        with contextlib.suppress(MasterUnreachable):
            self._sight = await look_around(self._client, spec.name, self._clock)
        network, way = await self._look_at_network(spec)
        # In a thread, because a network file system that hangs must not stop the daemon's loops. Who can't wait for it
        # gives up, and the thread is left to itself.
        machine = await asyncio.to_thread(self._look_at_machine, spec)
        return (*self._against_master(spec), network, *machine), way

    def _against_master(self, spec: NodeSpec) -> list[Finding]:
        if self._sight is None:
            return []
        seen = self._sight
        return [
            findings.clock(seen.offset_s, seen.uncertainty_s),
            findings.version(__version__, seen.cluster.version),
            self._judge_tls(spec, seen),
        ]

    def _judge_tls(self, spec: NodeSpec, seen: Sight) -> Finding:
        if seen.certificate_end is not None:
            return findings.certificate(seen.certificate_end - self._clock())
        leaves = not is_loopback(self._settings.master_addr) and seen.cluster.boot_id != spec.machine.boot_id
        return findings.plain_http(self._client.url, leaves_machine=leaves)

    async def _look_at_network(self, spec: NodeSpec) -> tuple[Finding, Way | None]:
        host = self._settings.master_addr
        try:
            way = await find_way(host, self._settings.port)
        except OSError as error:
            return findings.no_way(host, error.strerror or str(error)), None
        strangers = self._sight.cluster.strangers if self._sight else 0
        return findings.network(host, way.resolved, *way.route, strangers), way

    def _look_at_machine(self, spec: NodeSpec) -> list[Finding]:
        free, total = available_memory(spec.machine.memory_bytes), spec.machine.memory_bytes
        shared = findings.shm(shutil.disk_usage(_SHM).total if _SHM.exists() else 0, computes=spec.role.computes)
        secrets = secret_files(readable_secret_files())
        own = [_look_at_disk(self._settings.data), shared, findings.memory(free, total), _look_at_sandbox(), secrets]
        return [*own, findings.gpus(self._cards)] if spec.role.computes else own


async def look_around(client: MasterClient, name: str, clock: Callable[[], float] = time.time) -> Sight:
    """Ask the master for its clock. It read it somewhere on the round trip: half of that is the uncertainty."""
    begin, started = time.monotonic(), clock()
    cluster = await client.cluster(name)
    half_s = (time.monotonic() - begin) / 2
    return Sight(cluster, started + half_s - cluster.time_s, half_s, client.certificate_end)


def _look_at_sandbox() -> Finding:
    mode = read_worker().sandbox
    try:
        version = landlock.version()
    except OSError as error:
        return findings.sandbox(mode, 0, error)
    try:
        seccomp.check()
    except OSError as error:
        return findings.sandbox(mode, version, None, error)
    return findings.sandbox(mode, version, None)


def _look_at_disk(data: Path) -> Finding:
    try:
        found = os.statvfs(data)
    except OSError as error:
        return findings.unwritable(str(data), error.strerror or str(error))
    if found.f_flag & os.ST_RDONLY or not os.access(data, os.W_OK):
        return findings.unwritable(str(data), "it can't be written to")
    # File systems without a fixed number of inodes tell of none.
    space = Space(
        found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, not found.f_files or found.f_favail > 0
    )
    return findings.disk(str(data), space)
