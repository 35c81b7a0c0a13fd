"""The node's link to its master: registers, sends heartbeats, follows a new address."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from rolecall.logs import OncePerReason, about
from rolecall.network.interfaces import has_address
from rolecall.network.routes import Route, find_route
from rolecall.node.client import MasterClient, MasterRefuses, MasterUnreachable, NameTaken, ReportRefused
from rolecall.node.contact import Contact
from rolecall.node.health import NodeHealth
from rolecall.node.loops import keep_calling
from rolecall.node.self_check import CHECK_EVERY_S, LastFindings
from rolecall.node.worker_pool import WorkerPool
from rolecall.retry import delays_s
from rolecall.settings.node import NodeSettings
from rolecall.spec.errors import NotFound, SettingsError
from rolecall.spec.node import NodeSpec
from rolecall.spec.wire import Heartbeat, Registered

_LOG = logging.getLogger(__name__)
_NAME_TAKEN_S = 5.0
"""The time for retries while the name is taken: the master soon notices the end of an earlier node of this name."""
_RETRY_S = 2.0
_CHECK_S = 3.0
"""The maximum silence of a node that registers again, for its self-check; the master's timeout is longer."""


class MasterLink:
    """Registers the node as `spec` and exchanges heartbeats, which contain the findings of the last self-check.

    `news` is set when the next heartbeat should be sent immediately.
    """

    def __init__(
        self,
        settings: NodeSettings,
        spec: NodeSpec,
        client: MasterClient,
        contact: Contact,
        pool: WorkerPool,
        *,
        last: LastFindings,
        health: NodeHealth,
        news: asyncio.Event,
        clock: Callable[[], float],
    ) -> None:
        self.spec = spec
        self.draining = False
        self.heartbeat_failures = 0
        self._settings = settings
        self._client = client
        self._contact = contact
        self._pool = pool
        self._last = last
        self._health = health
        self._news = news
        self._clock = clock
        self._seen = -1
        self._heartbeat_s: float | None = None
        """The interval of heartbeats; None while the node is not registered."""
        self._lost_contact = False

    @property
    def certificate_end(self) -> float | None:
        """The end of the master's certificate, in seconds since 1970; None without TLS."""
        return self._client.certificate_end

    async def run(self) -> None:
        """Exchange heartbeats until cancelled; workers continue while the master is unavailable.

        Raises `SettingsError` if the master refuses this node from the start.
        """
        await keep_calling(self._keep_exchanging, _RETRY_S, "master_link", node=self.spec.name)

    async def _keep_exchanging(self) -> None:
        delays, reasons = delays_s(), OncePerReason()
        while True:
            try:
                await self._exchange()
                if reasons.end():
                    _LOG.info("the master is back", extra=self._about("master_back"))
                delays, self._lost_contact = delays_s(), False
                self._health.wait_for("")
                self._health.has_registered |= self._heartbeat_s is not None
            except MasterUnreachable as error:
                if isinstance(error, MasterRefuses) and not self._contact.was_made:
                    raise SettingsError(str(error)) from None
                self._lose_contact(error)
                if reasons.is_new(reason := f"the master is unavailable: {error}"):
                    _LOG.warning("%s; retrying", reason, extra=self._about("master_unavailable"))
                    self._health.wait_for(reason)
                await asyncio.sleep(next(delays))

    async def keep_checking(self) -> None:
        """Check this node every `CHECK_EVERY_S` seconds while it is registered, until cancelled."""

        async def check() -> None:
            if self._heartbeat_s is not None:
                await self._check()

        await keep_calling(check, CHECK_EVERY_S, "self_check", node=self.spec.name)

    async def leave(self) -> None:
        """Deregister the node, if it is registered."""
        try:
            if self._heartbeat_s is not None:
                await self._client.leave(self.spec.name, self.spec.started)
        except MasterUnreachable as error:
            _LOG.warning("left without informing the master: %s", error, extra=self._about("leave_failed"))

    def _lose_contact(self, error: MasterUnreachable) -> None:
        """Record the failure, and kill the workers if the master must consider this node lost by now."""
        self.heartbeat_failures += 1
        self._lost_contact = True
        self._contact.failed(error, self._clock())
        partitioned = error.partitioned or not has_address(self.spec.address)
        if (reason := self._contact.fence_reason(partitioned=partitioned, now=self._clock())) is not None:
            self._pool.kill_all(reason)

    async def _exchange(self) -> None:
        """Send one heartbeat, after a registration if the master does not know this node."""
        try:
            if self._lost_contact:
                # After a network partition, this node may have another interface, and the answer may contain workers.
                # Without a route, the heartbeat fails as well and reports the reason.
                with contextlib.suppress(OSError):
                    self._follow((await find_route(self._settings.master_addr, self._settings.port)).route)
            if is_new := self._heartbeat_s is None:
                await self._register()
            if not self._last.findings:
                # Without a time limit, and again after an error: before its first check, a node should get no workers.
                await self._check()
            elif is_new:
                await self._check_in_time()
            await self._beat(self._heartbeat_s or 0.0)
        except ReportRefused as error:
            # Only the texts of workers can make a report too large, or contain values that the master refuses.
            if not (count := self._pool.drop_texts(str(error))):
                raise MasterRefuses(
                    f"the master refuses this node's report: {error}", by_master=error.by_master
                ) from error
            _LOG.error(
                "the master refuses this node's report (%s); %d failures are reported without their texts",
                error,
                count,
                extra=self._about("report_refused"),
            )
        except NotFound as error:
            _LOG.warning(
                "the master does not know this node (%s); registering again", error, extra=self._about("node_unknown")
            )
            self._heartbeat_s = None

    async def _register(self) -> None:
        registered = await self._register_name()
        self._heartbeat_s, self._seen = registered.heartbeat_s, -1
        self._contact.node_timeout_s = registered.node_timeout_s
        _LOG.info(
            "registered as %s with %s (%s)",
            self.spec.name,
            self._client.url,
            registered.master_version,
            extra=self._about("node_registered"),
        )

    async def _register_name(self) -> Registered:
        """Register, with time for the master to notice the end of an earlier node of this name."""
        deadline, reasons = self._clock() + _NAME_TAKEN_S, OncePerReason()
        for delay in delays_s():
            try:
                return await self._client.register(self.spec)
            except NameTaken as error:
                if self._clock() > deadline:
                    raise SettingsError(str(error)) from None
                if reasons.is_new(str(error)):
                    _LOG.info("%s; retrying for %g s", error, _NAME_TAKEN_S, extra=self._about("name_taken"))
                    self._health.wait_for(str(error))
                await asyncio.sleep(delay)
        raise AssertionError("delays never end")

    async def _check_in_time(self) -> None:
        """Check the node before its heartbeat, unless this takes long or fails.

        The master must know about running workers: the heartbeat then reports the previous findings.
        """
        limit = asyncio.timeout(_CHECK_S)
        try:
            async with limit:
                await self._check()
        except Exception:  # noqa: BLE001 - the next check is as good
            if not limit.expired():
                text = "the node's self-check failed; reporting the previous findings"
                _LOG.exception(text, extra=self._about("self_check_failed"))
                return
            _LOG.warning(
                "the node's self-check takes more than %g s; reporting the previous findings",
                _CHECK_S,
                extra=self._about("self_check_slow"),
            )

    async def _check(self) -> None:
        """Check the node; the next heartbeat reports the findings, immediately if a level changed."""
        if (found := await self._last.check()) is not None:
            self._follow(found.route)

    def _follow(self, found: Route) -> None:
        """Register again if the node's address or interface changed: new peers must know it."""
        if found == self._pool.route:
            return
        before, now = (f"{route.address} ({route.interface})" for route in (self._pool.route, found))
        _LOG.warning(
            "this node moved from %s to %s; registering again", before, now, extra=self._about("address_changed")
        )
        self._pool.route = found
        self.spec = self.spec.model_copy(update=found._asdict())
        self._heartbeat_s = None

    async def _beat(self, wait_s: float) -> None:
        """Report, and get the desired workers. News cancels a waiting call, and the next one reports them.

        There is one call at a time, so that no older answer can overtake a newer one.
        """
        urgent = self._news.is_set()
        self._news.clear()
        beat = Heartbeat(
            started=self.spec.started,
            seen=self._seen,
            wait_s=0.0 if urgent else wait_s,
            workers=tuple(worker.report for worker in self._pool.workers.values()),
            draining=self.draining,
            findings=(*self._last.findings, *self._contact.findings(self._clock())),
        )
        call = asyncio.ensure_future(self._client.heartbeat(self.spec.name, beat))
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait({call} if urgent else {call, news}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                desired = call.result()
                self._seen = desired.version
                self._pool.set_desired(desired)
                self._contact.answered(self._clock())
        except BaseException:
            self._news.set()  # The contents of this call are still unreported.
            raise
        finally:
            call.cancel()
            news.cancel()

    def _about(self, event: str) -> dict[str, object]:
        return about(event, node=self.spec.name)
