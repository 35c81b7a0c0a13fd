"""TLS between master, nodes, workers and the command: what works, and the messages when it does not."""

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from pydantic import SecretStr
from tests.cluster.jobs import short_job
from tests.conftest import TOKEN
from tests.containers import HEALTHCHECK
from tests.master.harness import make_node, make_settings
from tests.node.harness import ScriptedMaster
from tests.running import accepted
from tests.security.certificates import Pair, make_ca, sign
from tests.security.programs import await_end, await_nodes, containers

from rolecall.client import Client, ClientError
from rolecall.client.connection import Connection
from rolecall.edge.tls import Certificate, client_options
from rolecall.master.server import read_certificate
from rolecall.network.findings import certificate
from rolecall.node.client import MasterClient, MasterUnreachable
from rolecall.node.findings import GpuInventory
from rolecall.node.self_check import SelfCheck
from rolecall.settings.node import NodeSettings
from rolecall.spec.errors import SettingsError
from rolecall.spec.finding import Level
from rolecall.spec.role import Role
from rolecall.spec.trust import Trust

NODE_TOKEN = "a-node-token-for-the-tests"
DAY_S = 86_400
Ask = Callable[[int, str, Trust | None], Awaitable[str]]


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The CA that signs the master's certificates."""
    return make_ca(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def pair(ca: Pair) -> Pair:
    """A good certificate for 127.0.0.1."""
    return sign(ca)


@pytest.fixture(scope="module")
def misnamed(ca: Pair) -> Pair:
    """A certificate for another name than the address that is called."""
    return sign(ca, "misnamed", hosts=("DNS:rolecall-master",))


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"status": "ok"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_DELETE(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def do_PATCH(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that trust it not hang up."""


@contextmanager
def answering(certificate: Certificate | None) -> Generator[int]:
    """The port of a server that answers every request alike, by HTTPS if it has a certificate."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        if certificate:
            server.socket = certificate.context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


async def command(port: int, scheme: str = "https", trust: Trust | None = None) -> str:
    """The output of `rolecall` about the master there."""
    with Client(Connection(f"{scheme}://127.0.0.1:{port}", "token", trust)) as client:
        try:
            return client.healthz().status
        except ClientError as error:
            return str(error)


async def node(port: int, scheme: str = "https", trust: Trust | None = None) -> str:
    """A node's log about the master there."""
    client = MasterClient(f"{scheme}://127.0.0.1:{port}", lambda: "token", trust)
    try:
        await client.leave("x", "first")
    except MasterUnreachable as error:
        return str(error)
    finally:
        await client.close()
    return "ok"


@pytest.mark.parametrize("ask", [command, node])
async def test_what_keeps_clients_from_a_server_is_said_in_one_line(ask: Ask, ca: Pair, pair: Pair) -> None:
    trust, other = Trust(ca=str(ca.certificate)), make_ca(ca.certificate.parent, "other")

    async def said(port: int, scheme: str = "https", trust: Trust | None = trust) -> str:
        text = await ask(port, scheme, trust)
        assert "\n" not in text
        return text

    with answering(Certificate(*pair)) as port:
        assert await said(port) == await said(port, trust=Trust(ca=str(ca.certificate), name="rolecall-master")) == "ok"
        foreign = await said(port, trust=Trust(ca=str(other.certificate)))
        assert f"its certificate is not signed by the CA in ROLECALL_TLS_CA={other.certificate}" in foreign
        assert "is not signed by the system's CAs" in await said(port, trust=None)
        misnamed = await said(port, trust=Trust(ca=str(ca.certificate), name="elsewhere"))
        assert "not valid for 'elsewhere'" in misnamed
        assert "ROLECALL_TLS_NAME" in misnamed
        assert "if the master has a certificate (ROLECALL_TLS_CERT)" in await said(port, "http")
    with answering(Certificate(*sign(ca, "old", days=0))) as port:
        assert "its certificate has expired; renew" in await said(port)
    with answering(Certificate(*sign(ca, "foreign", hosts=("DNS:elsewhere",)))) as port:
        assert "not valid for '127.0.0.1'" in await said(port)
    with answering(None) as port:
        assert "no TLS is spoken there; write http://" in await said(port)


def _follow(client: Client) -> None:
    with client.log_events("x", {}, ""):
        pass


CALLS: dict[str, Callable[[Client], object]] = {
    "submit": lambda client: client.submit(b"{}"),
    "job": lambda client: client.job("x"),
    "act": lambda client: client.act("x", "cancel"),
    "delete": lambda client: client.delete("x", force=True),
    "prune": lambda client: client.prune(datetime.now(UTC), None, dry_run=True),
    "jobs": lambda client: client.jobs(1),
    "events": lambda client: client.events("x"),
    "nodes": lambda client: client.nodes(),
    "version": lambda client: client.version(),
    "healthz": lambda client: client.healthz(),
    "readyz": lambda client: client.readyz(),
    "findings": lambda client: client.findings(),
    "tokens": lambda client: client.tokens(),
    "create_token": lambda client: client.create_token({}),
    "change_token": lambda client: client.change_token("x", {}),
    "rotate_token": lambda client: client.rotate_token("x", 0),
    "revoke_token": lambda client: client.revoke_token("x"),
    "audit": lambda client: client.audit(1),
    "workloads": lambda client: client.workloads(),
    "workload": lambda client: client.workload("x"),
    "artifacts": lambda client: client.artifacts("x"),
    "stacks": lambda client: client.stacks("x"),
    "profile": lambda client: client.profile("x", {}),
    "save_timeline": lambda client: client.save_timeline("x", {}, Path("timeline")),
    "log": lambda client: list(client.log("x", {})),
    "log_events": _follow,
    "plan": lambda client: client.plan({}),
    "update": lambda client: client.update("x", {}),
    "follow_events": lambda client: list(client.follow_events("x")),
    "metrics": lambda client: client.metrics("x"),
    "checkpoints": lambda client: client.checkpoints("x"),
    "download_checkpoint": lambda client: client.download_checkpoint("x", 1, Path("checkpoint")),
    "download": lambda client: client.download("x", "y", Path("artifact")),
}


def test_each_call_of_the_command_is_tried_below() -> None:
    assert set(CALLS) == {name for name, value in vars(Client).items() if callable(value) and not name.startswith("_")}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_of_the_command_takes_the_name_of_the_certificate(
    name: str, ca: Pair, misnamed: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = ""
    trust = Trust(ca=str(ca.certificate), name="rolecall-master")
    with (
        answering(Certificate(*misnamed)) as port,
        Client(Connection(f"https://127.0.0.1:{port}", "t", trust)) as client,
    ):
        try:
            CALLS[name](client)
        except ClientError as error:
            said = str(error)
    # The answer, if it comes that far, is not what most of them expect.
    assert not said or "is it a Rolecall master" in said


def test_tls_of_before_1_2_is_refused(pair: Pair) -> None:
    assert Certificate(*pair).context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_renewed_certificate_is_served_without_a_restart(ca: Pair, tmp_path: Path) -> None:
    live = Pair(tmp_path / "live.crt", tmp_path / "live.key")

    def install(fresh: Pair) -> None:
        for source, target in zip(fresh, live, strict=True):
            partial = target.with_suffix(".new")
            partial.write_bytes(source.read_bytes())
            partial.rename(target)

    def serial(port: int) -> str:
        context = ssl.create_default_context(cafile=str(ca.certificate))
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1") as wrapped:
            return str((wrapped.getpeercert() or {})["serialNumber"])

    install(sign(ca, "first"))
    with answering(Certificate(*live)) as port:
        first = serial(port)
        assert serial(port) == first
        live.certificate.write_text("half a file")
        assert serial(port) == first, "what can't be read is not served"
        install(sign(ca, "second"))
        assert serial(port) != first


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (("absent", "absent"), "No such file or directory; mount both files"),
        (("empty", "key"), "give PEM files of a certificate and of its key"),
        (("certificate", "other"), "KEY_VALUES_MISMATCH; give PEM files"),
        (("certificate", "locked"), "give PEM files of a certificate and of its key"),
    ],
)
def test_files_of_no_use_are_named(files: tuple[str, str], said: str, ca: Pair, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    locked = ["openssl", "ec", "-in", pair.key, "-aes128", "-passout", "pass:secret", "-out", tmp_path / "locked"]
    subprocess.run(locked, check=True, capture_output=True)
    known = {"certificate": pair.certificate, "key": pair.key, "other": ca.key}
    with pytest.raises(SettingsError, match=said) as caught:
        Certificate(*(known.get(name, tmp_path / name) for name in files))
    assert "ROLECALL_TLS_CERT=" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_ca_file_of_no_use_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"ROLECALL_TLS_CA=/nowhere: No such file"):
        MasterClient("https://127.0.0.1:1", lambda: "token", Trust(ca="/nowhere"))
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(ClientError, match="holds no certificate; give a PEM file"):
        Client(Connection("https://127.0.0.1:1", "token", Trust(ca=str(tmp_path / "ca.crt"))))


def test_the_authorities_of_the_system_are_loaded_for_https_alone(ca: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take tens of milliseconds of CPU time, in each command and each worker. Without them, TLS fails."""
    monkeypatch.setenv("SSL_CERT_FILE", str(ca.certificate))  # Some systems have a folder instead of a file.
    given = Trust(ca=str(ca.certificate))
    for url, trust, loaded in (("https://m", None, True), ("http://m", None, False), ("http://m", given, True)):
        context = client_options(url, trust)["verify"]
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.check_hostname
        assert bool(context.get_ca_certs()) == loaded, url


@pytest.mark.parametrize(("ahead", "level"), [(15 * DAY_S, Level.OK), (13 * DAY_S, Level.WARNING)])
def test_a_certificate_that_ends_soon_is_a_warning(ahead: float, level: Level) -> None:
    assert certificate(ahead).level is level


@pytest.mark.parametrize(
    ("address", "boot_id", "level"),
    [
        ("192.0.2.1", "another-machine", Level.WARNING),
        ("192.0.2.1", "", Level.WARNING),
        ("192.0.2.1", "m0", Level.OK),
        ("127.0.0.1", "another-machine", Level.OK),
    ],
)
async def test_clear_text_that_leaves_the_machine_is_a_warning(
    address: str, boot_id: str, level: Level, tmp_path: Path
) -> None:
    master = ScriptedMaster()
    master.boot_id = boot_id
    settings = NodeSettings(
        role=Role.TRAINER, name="n", master_addr=address, data=tmp_path, node_token=SecretStr(NODE_TOKEN)
    )
    client = MasterClient(f"http://127.0.0.1:{master.port}", lambda: NODE_TOKEN)
    with master.serving():
        found, _ = await SelfCheck(settings, client, GpuInventory(0, 0)).run(make_node("trainer-0", Role.TRAINER))
        await client.close()
    (finding,) = [one for one in found if one.check == "tls"]
    assert finding.level is level
    assert f"http://127.0.0.1:{master.port}" in finding.message


def test_half_a_pair_is_an_error(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="ROLECALL_TLS_CERT and ROLECALL_TLS_KEY belong together"):
        read_certificate(make_settings(tmp_path, tls_cert=pair.certificate))


@pytest.mark.slow
def test_a_job_runs_with_tls_on_every_connection(ca: Pair, pair: Pair, rows: Path, tmp_path: Path) -> None:
    shared = {
        "ROLECALL_NODE_TOKEN": NODE_TOKEN,
        "ROLECALL_TLS_CA": str(ca.certificate),
        "ROLECALL_TLS_NAME": "rolecall-master",
        "ROLECALL_DATA_ROOTS": str(rows.parent),
    }
    tls = {"ROLECALL_TLS_CERT": str(pair.certificate), "ROLECALL_TLS_KEY": str(pair.key)}
    roles = {"master": {"ROLECALL_TOKEN": TOKEN, **tls}, "parameter-server": {}, "trainer": {}}
    verified = ssl.create_default_context(cafile=str(ca.certificate))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with containers(tmp_path, shared, roles) as (port, _):
        url = f"https://127.0.0.1:{port}"
        with httpx.Client(base_url=url, verify=verified, headers=headers, trust_env=False, timeout=30) as client:
            await_nodes(client, 3)
            body = short_job(rows, trainers=1) | {"max_restarts": 0}
            job = accepted(client.post("/jobs", json=body))["id"]
            document = await_end(client, job)
            assert document["state"] == "succeeded", document["reason"]
            # What the workers sent for themselves.
            assert client.get(f"/jobs/{job}/artifacts").json()["artifacts"]
            nodes = client.get("/nodes").json()["nodes"]
        said = {one["message"] for node in nodes for one in node["findings"] if one["check"] == "tls"}
        assert said == {"the master's certificate expires in 30 days"}
        shell = {"ROLECALL_URL": url, "ROLECALL_TOKEN": TOKEN, "ROLECALL_TLS_CA": str(ca.certificate)}
        listed = _run([sys.executable, "-m", "rolecall.cli", "jobs"], shell)
        assert job in listed.stdout, listed.stderr
        metrics_port = next(node["spec"]["metrics_port"] for node in nodes if node["spec"]["role"] == "master")
        asked = {"ROLE": "master", "ROLECALL_PORT": str(port), "ROLECALL_METRICS_PORT": str(metrics_port)}
        checked = _run([str(HEALTHCHECK)], asked | tls)
        assert checked.returncode == 0, checked.stderr


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
