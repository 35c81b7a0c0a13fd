# pyright: standard
"""Webhooks: where they may go, their signature, and their delivery."""

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rolecall.master.store import jobs, notifications
from rolecall.master.webhooks import MAX_TRIES, address_problem, next_try, url_problem
from rolecall.spec.access import Scope
from rolecall.spec.job import JobSpec
from rolecall.spec.state import JobState
from rolecall.spec.webhook import only_host

from .harness import Client, ManualClock, make_token, on_master, still_master
from .test_api import check_problem
from .test_store import NOW

HOSTS = ("hooks.example.com", "*.example.org", "other.example:8443")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://hooks.example.com/a?b=c", None),
        ("https://HOOKS.example.com:443/", None),
        ("http://a.example.org", None),
        ("https://other.example:8443/x", None),
        ("https://other.example/x", "other.example is not allowed"),
        ("https://hooks.example.com:22/", "hooks.example.com:22 is not allowed"),
        ("https://hooks.example.com:0/", "hooks.example.com:0 is not allowed"),
        ("https://example.org/", "not allowed"),
        ("https://hooks.example.com.evil.com/", "not allowed"),
        ("https://evilexample.org/", "not allowed"),
        ("https://user:pw@hooks.example.com/", "user information"),
        ("https://hooks.example.com@evil.com/", "user information"),
        ("ftp://hooks.example.com/", "not an http or https URL"),
        ("file:///etc/passwd", "not an http or https URL"),
        ("https://hooks.example.com:99999/", "not a URL"),
        ("https://[::1/", "not a URL"),
        ("https://hooks.example.com/\r\nX: y", "printable ASCII"),
        ("https://hooks.example.com/" + "a" * 2000, "up to 2000"),
        ("https://hooks.example.com\\@evil.com/", "printable ASCII"),
        ("https://hooks.example.com%2f.evil.example/", "not an http or https URL with a host name"),
        ("https://.example.org/", "not an http or https URL with a host name"),
        ("https://a..example.org/", "not an http or https URL with a host name"),
        (f"https://{'a' * 64}.example.org/", "not an http or https URL with a host name"),
        ("", "not an http or https URL"),
    ],
)
def test_only_allowed_hosts_are_accepted(url: str, said: str | None) -> None:
    problem = url_problem(url, HOSTS)
    assert problem is None if said is None else said in (problem or "")
    assert "ROLECALL_WEBHOOK_HOSTS" in (url_problem("https://hooks.example.com", ()) or "")


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "192.168.1.1",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fc00::1",
        "fec0::1",
        "ff02::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:a00:1::",
        "192.0.0.192",
        "168.63.129.16",
    ],
)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert "is not public" in (address_problem(address, ()) or "")


def test_public_addresses_and_allowed_networks_are_accepted() -> None:
    for address in ("8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"):
        assert address_problem(address, ()) is None
    assert address_problem("10.1.2.3", ("10.1.0.0/16",)) is None
    assert address_problem("10.2.2.3", ("10.1.0.0/16",)) is not None


def test_tries_end_and_only_the_host_is_shown() -> None:
    assert next_try(MAX_TRIES, NOW) is None
    assert all(next_try(tries, NOW) for tries in range(1, MAX_TRIES))
    assert only_host("https://a.example:8443/T0/secret?token=x") == "https://a.example:8443/***"
    assert only_host("https://me:secret@a.example") == "https://a.example/***"
    assert only_host("http://[::1]:8443/T0") == "http://[::1]:8443/***"
    for other in ("hello", "me:secret@a.example", "secret:a", "https:///secret", "http://["):
        assert only_host(other) == "***"


@contextmanager
def receiver(*statuses: int) -> Generator[tuple[int, list[tuple[dict[str, str], bytes]]]]:
    """A server that answers POST with these statuses, and then 204: its port, and the requests."""
    received: list[tuple[dict[str, str], bytes]] = []
    answers = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((dict(self.headers), body))
            status = answers.pop(0) if answers else 204
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "http://127.0.0.1:1/")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port, received
        server.shutdown()


async def webhook_events(client: Client, job: str, count: int = 1) -> list[str]:
    """The messages of the job's events about webhooks, when there are `count`."""
    async with asyncio.timeout(15):
        while True:
            events = (await client.user("GET", f"/jobs/{job}/events")).json()["events"]
            if len(found := [one["message"] for one in events if one["kind"] == "webhook"]) == count:
                return found
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_webhook_is_signed_and_survives_failures_and_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    load, loads = ssl.SSLContext.load_verify_locations, list[object]()
    monkeypatch.setattr(
        ssl.SSLContext, "load_verify_locations", lambda *given, **named: loads.append(given) or load(*given, **named)
    )
    with receiver(503, 302) as (port, received):
        own: dict[str, Any] = {"webhook_hosts": (f"localhost:{port}",), "webhook_networks": ("127.0.0.0/8", "::1/128")}
        url = f"http://localhost:{port}/T0/secret?token=hidden"
        async with on_master(tmp_path, clock=clock, **own) as client:
            alice = await make_token(client, "alice", Scope.SUBMIT)
            secret = (await client.call(alice, "GET", "/webhook-secret")).json()["secret"]
            body = {"workload": "toy", "name": "n", "labels": {"team": "a"}, "notify": url}
            made = (await client.call(alice, "POST", "/jobs", json=body)).json()
            assert made["notify"] == f"http://localhost:{port}/***"
            await client.call(alice, "POST", f"/jobs/{made['id']}/cancel")
            for count in (1, 2):  # The receiver fails, and then redirects.
                async with asyncio.timeout(10):
                    while len(received) < count:
                        await asyncio.sleep(0.02)
                        clock.advance(1 if count > 1 else 0)
        clock.advance(600)
        async with on_master(tmp_path, clock=clock, **own) as client:
            assert await webhook_events(client, made["id"]) == [f"webhook sent to http://localhost:{port}/***"]
            assert (await client.call(alice, "GET", "/webhook-secret")).json()["secret"] == secret
        assert len(loads) <= 1, "the event loop waits while CAs are loaded"
        headers, content = received[-1]
        assert len({request["webhook-id"] for request, _ in received}) == 1
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + content
        mac = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256).digest()
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(mac).decode()}"
        message = json.loads(content)
        assert (message["type"], message["data"]["id"]) == ("job.cancelled", made["id"])
        assert (message["data"]["labels"], message["data"]["state"]) == ({"team": "a"}, "cancelled")


@pytest.mark.slow
async def test_a_webhook_to_a_private_address_or_another_host_is_not_sent(tmp_path: Path) -> None:
    with receiver() as (port, received):
        async with on_master(tmp_path, webhook_hosts=(f"localhost:{port}",)) as client:
            wrong = await client.user("POST", "/jobs", json={"workload": "toy", "notify": "https://evil.example/x"})
            (error,) = check_problem(wrong, 422)["errors"]
            assert (error["field"], f"localhost:{port}" in error["legal"]) == ("notify", True)
            no_url = await client.user("POST", "/jobs", json={"workload": "toy", "notify": "hello"})
            assert check_problem(no_url, 422)["errors"][0]["given"] == '"***"'
            job = (await client.submit(notify=f"http://localhost:{port}/"))["id"]
            await client.user("POST", f"/jobs/{job}/cancel")
            async with asyncio.timeout(15):
                while True:
                    async with client.master.database.read() as connection:
                        tries = (await connection.exec_driver_sql("SELECT tries FROM notifications")).scalar()
                    if tries:
                        break
                    await asyncio.sleep(0.05)
        assert received == []


@pytest.mark.slow
async def test_a_name_server_that_hangs_does_not_delay_the_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered, resolve = threading.Event(), threading.Event(), socket.getaddrinfo

    def hang(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "slow.example.org":
            asked.set()
            answered.wait(30)
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    async with on_master(tmp_path, webhook_hosts=("*.example.org",)) as client:
        job = (await client.submit(notify="https://slow.example.org/"))["id"]
        await client.user("POST", f"/jobs/{job}/cancel")
        assert await asyncio.to_thread(asked.wait, 15)
        begin = time.monotonic()
    answered.set()
    assert time.monotonic() - begin < 10


async def test_notifications_of_one_owner_do_not_delay_others(tmp_path: Path) -> None:
    # Hosts that the resolver and the HTTP client reject each with an error of their own.
    bad = (
        "https://a..example.org/",
        "https://xn--a.example.org/",
        "https://hooks.example.com/",
        "http://b.example.org",
    )
    async with still_master(tmp_path, webhook_hosts=HOSTS) as master:
        now = master.clock.now()
        async with master.database.write() as connection:
            for number, (url, owner) in enumerate(zip(bad, ("mallory", "mallory", "mallory", "bob"), strict=True)):
                spec = JobSpec(id=f"toy-{number}", workload="toy", notify=url)
                await jobs.add(connection, spec, now, owner)
                await notifications.add(connection, spec.id, JobState.CANCELLED, now)
        async with master.database.read() as connection:
            due = await notifications.due(connection, now, 2)
        assert [one.job for one in due] == ["toy-0", "toy-3"]
        await master.notifier.deliver()
        async with master.database.read() as connection:
            tries = (await connection.exec_driver_sql("SELECT tries FROM notifications")).scalars().all()
        assert tries == [1] * len(bad)
