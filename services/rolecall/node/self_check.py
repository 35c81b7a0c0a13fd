"""A node's self-check: the measurements for the findings about its machine and its route to the master."""

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rolecall import __version__, landlock, seccomp
from rolecall.daemon_thread import run_in_daemon_thread
from rolecall.logs import about
from rolecall.network.findings import certificate, no_route, plain_http, route
from rolecall.network.routes import ResolvedRoute, find_route
from rolecall.node import findings
from rolecall.node.client import MasterClient, MasterUnreachable
from rolecall.node.devices import available_memory
from rolecall.node.findings import GpuInventory, Space
from rolecall.settings.node import NodeSettings
from rolecall.settings.private_paths import readable_secret_files
from rolecall.settings.worker import read_worker
from rolecall.spec.finding import Finding, Level, secret_files, version
from rolecall.spec.node import NodeSpec, is_loopback
from rolecall.spec.shared_memory import SHARED_MEMORY
from rolecall.spec.wire import ClusterInfo

CHECK_EVERY_S = 10.0
_MACHINE_CHECK_S = 1.0
"""The maximum delay of the report of a failed worker by a check of the machine."""
_LOG = logging.getLogger(__name__)


class ClockSample(NamedTuple):
    """The master's answer, and the difference between its clock and this node's."""

    cluster: ClusterInfo
    offset_s: float
    uncertainty_s: float
    certificate_end: float | None = None
    """The end of the master's certificate, in seconds since 1970; None without TLS."""


class SelfCheck:
    """Runs all checks. While the master is unavailable, its last answer counts."""

    def __init__(
        self,
        settings: NodeSettings,
        client: MasterClient,
        gpus: GpuInventory,
        clock: Callable[[], float] = time.time,
        *,
        on_info: Callable[[ClusterInfo], None] = lambda info: None,
    ) -> None:
        """`on_info` is called with each answer of the master."""
        self._settings = settings
        self._client = client
        self._gpus = gpus
        self._clock = clock
        self._on_info = on_info
        self._sample: ClockSample | None = None
        self._machine_check: asyncio.Future[list[Finding]] | None = None

    async def run(self, spec: NodeSpec) -> tuple[tuple[Finding, ...], ResolvedRoute | None]:
        """The findings about the node, and its current route to the master, if there is one."""
        # The heartbeat fails as well and reports it.
        with contextlib.suppress(MasterUnreachable):
            self._sample = await compare_clocks(self._client, spec.name, self._clock)
            self._on_info(self._sample.cluster)
        network, found = await self._check_network()
        machine = await self.run_machine(spec)
        if (sample := self._sample) is None:
            return (network, *machine), found
        clock = findings.clock(sample.offset_s, sample.uncertainty_s)
        compared = version(__version__, sample.cluster.version)
        return (clock, compared, self._check_tls(spec, sample), network, *machine), found

    async def run_machine(self, spec: NodeSpec) -> list[Finding]:
        """The findings about the machine alone. A network file system that hangs stops no loop and delays no exit.

        A check that hangs is awaited again instead of started again, because it keeps its thread.
        """
        if self._machine_check is None or self._machine_check.done():
            self._machine_check = asyncio.ensure_future(run_in_daemon_thread(self._check_machine, spec))
        return await asyncio.shield(self._machine_check)

    def _check_tls(self, spec: NodeSpec, sample: ClockSample) -> Finding:
        if sample.certificate_end is not None:
            return certificate(sample.certificate_end - self._clock())
        leaves = not is_loopback(self._settings.master_addr) and sample.cluster.boot_id != spec.machine.boot_id
        return plain_http(self._client.url, leaves_machine=leaves)

    async def _check_network(self) -> tuple[Finding, ResolvedRoute | None]:
        host = self._settings.master_addr
        try:
            found = await find_route(host, self._settings.port)
        except OSError as error:
            return no_route(host, error.strerror or str(error)), None
        remote_nodes = self._sample.cluster.remote_nodes if self._sample else 0
        return route(host, found.resolved, *found.route, remote_nodes), found

    def _check_machine(self, spec: NodeSpec) -> list[Finding]:
        free, total = available_memory(spec.machine.memory_bytes), spec.machine.memory_bytes
        shared = findings.shm(
            shutil.disk_usage(SHARED_MEMORY).total if SHARED_MEMORY.exists() else 0, computes=spec.role.computes
        )
        secrets = secret_files(readable_secret_files())
        own = [_check_disk(self._settings.home), shared, findings.memory(free, total), _check_sandbox(), secrets]
        count, workers = len(spec.machine.gpus), spec.machine.workers_per_gpu
        if spec.role.computes or count:
            own.append(findings.gpus(self._gpus))
        return [*own, findings.shared_gpus(count, workers)] if count and workers > 1 else own


class LastFindings:
    """The findings of the last self-check of the node `spec`. `changed` is called when they have another level."""

    def __init__(self, self_check: SelfCheck, spec: NodeSpec, changed: Callable[[], None]) -> None:
        self.findings: tuple[Finding, ...] = ()
        self._self_check = self_check
        self._spec = spec
        self._changed = changed

    async def check(self) -> ResolvedRoute | None:
        """Check the node. Returns its current route to the master, if there is one."""
        findings, found = await self._self_check.run(self._spec)
        self._record(findings)
        return found

    async def check_machine(self) -> None:
        """Check the machine before a failed worker is reported.

        If the machine is the cause, such as a full disk, the same heartbeat reports both. Otherwise the job would use
        up its restarts on this node before the next regular check.
        """
        limit = asyncio.timeout(_MACHINE_CHECK_S)
        try:
            async with limit:
                new = {finding.check: finding for finding in await self._self_check.run_machine(self._spec)}
        except Exception:  # noqa: BLE001 - the failure must be reported with or without the check
            if not limit.expired():
                extra = about("self_check_failed", node=self._spec.name)
                _LOG.exception("the check of the machine failed", extra=extra)
            return
        self._record(tuple(new.get(finding.check, finding) for finding in self.findings))

    def _record(self, findings: tuple[Finding, ...]) -> None:
        before = {(finding.check, finding.level) for finding in self.findings}
        self.findings = findings
        for finding in findings:
            if finding.level is not Level.OK and (finding.check, finding.level) not in before:
                extra = about("self_check_finding", node=self._spec.name)
                _LOG.warning("%s: %s; %s", finding.check, finding.message, finding.remedy, extra=extra)
        if {(finding.check, finding.level) for finding in findings} != before:
            self._changed()


async def compare_clocks(
    client: MasterClient,
    name: str,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> ClockSample:
    """Get the time of the master's clock. It was read during the round trip, half of which is the uncertainty."""
    begin, started = monotonic(), clock()
    cluster = await client.cluster(name)
    half_s = (monotonic() - begin) / 2
    return ClockSample(cluster, started + half_s - cluster.time_s, half_s, client.certificate_end)


def _check_sandbox() -> Finding:
    mode = read_worker().sandbox
    try:
        interface = landlock.version()
    except OSError as error:
        return findings.sandbox(mode, 0, error)
    try:
        seccomp.check()
    except OSError as error:
        return findings.sandbox(mode, interface, None, error)
    return findings.sandbox(mode, interface, None)


def _check_disk(data: Path) -> Finding:
    try:
        stats = os.statvfs(data)
    except OSError as error:
        return findings.unwritable(str(data), error.strerror or str(error))
    if stats.f_flag & os.ST_RDONLY or not os.access(data, os.W_OK):
        return findings.unwritable(str(data), "it can't be written to")
    # File systems without a fixed number of inodes report 0.
    space = Space(
        stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize, not stats.f_files or stats.f_favail > 0
    )
    return findings.disk(str(data), space)
