"""The loop that sends webhooks: at least once, also if the master restarts in between.

It follows no redirects, reads no answers, and connects to the address that it has checked, so that a name can't resolve
to another address in between.
"""

import asyncio
import logging
import socket
import ssl
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

import httpx

from rolecall.daemon_thread import run_in_daemon_thread
from rolecall.logs import about
from rolecall.master.clock import Clock
from rolecall.master.storage_errors import Pulse
from rolecall.master.store import events, jobs, labels, notifications
from rolecall.master.store.database import Database
from rolecall.master.store.records import NotificationRecord
from rolecall.master.webhooks import (
    MAX_TRIES,
    address_problem,
    next_try,
    payload,
    secret_of,
    signed_headers,
    url_problem,
)
from rolecall.spec.errors import RolecallError
from rolecall.spec.webhook import only_host

_AT_ONCE = 8
_TIMEOUT_S = 10.0
"""Seconds for one try, from the name's resolution to the answer's status."""
_TICK_S = 1.0
_LOG = logging.getLogger(__name__)


class Undelivered(RolecallError):
    """A try failed; the text says why, without the URL."""


@dataclass(kw_only=True, eq=False)
class Notifier:
    """Sends the notifications of the outbox."""

    database: Database
    signing_key: str
    hosts: tuple[str, ...]
    networks: tuple[str, ...]
    clock: Clock

    def __post_init__(self) -> None:
        self.pulse = Pulse("sending webhooks", self.clock.monotonic)

    async def run(self) -> None:
        """Run passes until cancelled."""
        while True:
            with self.pulse.next_pass():
                await self.deliver()
            await asyncio.sleep(_TICK_S)

    async def deliver(self) -> None:
        """Send the notifications that are due. Raises the first unexpected error when all tries have ended."""
        now = self.clock.now()
        async with self.database.read() as connection:
            due = await notifications.due(connection, now, _AT_ONCE)
        if not due:
            return
        # Tries count before they begin. So their number is limited even if the database can't store the results.
        async with self.database.write() as connection:
            for one in due:
                tries = one.tries + 1
                await notifications.postpone(connection, one.id, tries, next_try(tries, now) or now)
        # Each ends before the next pass, which would otherwise send it a second time.
        results = await asyncio.gather(*map(self._deliver, due), return_exceptions=True)
        if error := next((result for result in results if isinstance(result, Exception)), None):
            raise error

    async def _deliver(self, one: NotificationRecord) -> None:
        shown, tries = only_host(one.notify), one.tries + 1
        if tries > MAX_TRIES:
            message = f"webhook to {shown} given up: the result of try {MAX_TRIES}, the last one, was not stored"
            _LOG.warning("job %s: %s", one.job, message, extra=about("webhook_failed", job=one.job))
        else:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await self._send(one)
            # `ValueError` and `InvalidURL`: URLs that another parser rejects.
            except (Undelivered, TimeoutError, httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                why = str(error) if isinstance(error, Undelivered) else type(error).__name__
                last = ", the last one" if tries == MAX_TRIES else ""
                message = f"webhook to {shown} failed ({why}) in try {tries}{last}"
                _LOG.warning("job %s: %s", one.job, message, extra=about("webhook_failed", job=one.job))
                if not last:
                    return
            else:
                message = f"webhook sent to {shown}"
        async with self.database.write() as connection:
            await notifications.remove(connection, one.id)
            await events.add(connection, one.job, self.clock.now(), "webhook", message)

    async def _send(self, one: NotificationRecord) -> None:
        async with self.database.read() as connection:
            job = await jobs.get(connection, one.job, hidden=True)
            labeled = await labels.of_jobs(connection, [one.job])
        body = payload(job, labeled.get(one.job, {}), one)
        if problem := url_problem(one.notify, self.hosts):
            raise Undelivered(problem)
        url = httpx.URL(one.notify)
        address = await _resolve(url, self.networks)
        secret = secret_of(self.signing_key, one.owner)
        # The time distinguishes the ends of a job that was retried. SQLite gives a row's number to a later row again.
        message_id = f"msg_{one.job}_{one.at:%Y%m%d%H%M%S%f}"
        headers = signed_headers(secret, message_id, self.clock.now(), body)
        headers |= {"Host": url.netloc.decode("ascii"), "User-Agent": "Rolecall"}
        # The certificate is checked for the name, and the connection goes to the address that was checked.
        extensions = {"sni_hostname": _host(url)}
        async with (
            httpx.AsyncClient(verify=_tls(), timeout=_TIMEOUT_S, trust_env=False, follow_redirects=False) as client,
            client.stream(
                "POST", url.copy_with(host=address), headers=headers, content=body, extensions=extensions
            ) as answer,
        ):
            if not answer.is_success:
                raise Undelivered(f"the response was {answer.status_code}")


@cache
def _tls() -> ssl.SSLContext:
    """The CAs that httpx trusts by default. To load them keeps the event loop busy for tens of milliseconds."""
    return httpx.create_ssl_context(trust_env=False)


async def _resolve(url: httpx.URL, networks: tuple[str, ...]) -> str:
    """The checked address of the URL's host."""
    port = urlsplit(str(url)).port or (443 if url.scheme == "https" else 80)
    try:
        found = await run_in_daemon_thread(socket.getaddrinfo, _host(url), port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise Undelivered(f"its name can't be resolved: {error.strerror}") from None
    addresses = [str(one[4][0]) for one in found]
    # All of them, so that a name with a public and a private address is not accepted by chance.
    if problem := next(filter(None, (address_problem(one, networks) for one in addresses)), None):
        raise Undelivered(problem)
    return addresses[0]


def _host(url: httpx.URL) -> str:
    # Not `url.host`, which decodes international names, and raises for some.
    return url.raw_host.decode("ascii")
