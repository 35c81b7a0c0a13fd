"""A real daemon that registers at a scripted master, examines itself, and registers again when its address changes."""

import re
import time
from pathlib import Path
from socket import AF_INET
from typing import Any

import psutil
import pytest
from tests.node.harness import ScriptedMaster, running_node, start_node
from tests.prerequisites import require_namespaces, unavailable

from rolecall import __version__
from rolecall.node.self_check import CHECK_EVERY_S
from rolecall.spec.finding import Finding, Level

# Each starts a fork server, which imports torch.
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ROLECALL_NODE_TOKEN": "another-token-for-nodes"}, "ROLECALL_NODE_TOKEN"),
        ({"ROLECALL_NODE_NAME": "taken"}, "ROLECALL_NODE_NAME"),
        ({"ROLECALL_NODE_NAME": "Not Legal"}, "ROLECALL_NODE_NAME"),
    ],
)
def test_a_refused_node_says_what_to_do(
    tmp_path: Path, settings: dict[str, Any], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    master = ScriptedMaster()
    with master.serving():
        node = start_node(master, tmp_path, **settings)
        assert node.wait(60) != 0
    assert re.search(f"SettingsError: .*{says}", capfd.readouterr().err)


def finding(master: ScriptedMaster, check: str) -> Finding:
    """The finding of a check in the newest heartbeat."""
    return next(one for one in master.beats[-1].findings if one.check == check)


def test_a_clock_and_a_version_that_are_off_are_reported_until_they_are_fixed(tmp_path: Path) -> None:
    master = ScriptedMaster()
    master.ahead_s, master.reported_version = 41.0, "9.9"
    with master.serving(), running_node(master, tmp_path):
        master.wait(lambda: master.beats, 60)
        assert all(beat.findings for beat in master.beats)
        clock, version = finding(master, "clock"), finding(master, "version")
        assert (clock.level, clock.message) == (Level.ERROR, "its clock is 41 s behind the master's")
        assert (version.level, version.message) == (
            Level.ERROR,
            f"its version is {__version__}, the master's is 9.9",
        )
        master.ahead_s, master.reported_version = 0.0, __version__
        master.wait(lambda: finding(master, "clock").level is Level.OK, 2 * CHECK_EVERY_S)
        assert finding(master, "version").level is Level.OK


def test_a_node_that_enters_again_reports_before_a_look_that_takes_long(tmp_path: Path) -> None:
    master = ScriptedMaster()
    with master.serving(), running_node(master, tmp_path):
        master.wait(lambda: master.beats, 60)
        master.check_delay_s, master.has_forgotten = 8.0, True
        master.wait(lambda: len(master.specs) > 1)
        entered, beats = time.monotonic(), len(master.beats)
        master.wait(lambda: len(master.beats) > beats)
        assert time.monotonic() - entered < 5
        assert master.beats[-1].findings


@pytest.fixture
def outer() -> str:
    """An address of this machine that is none of loopback's, for a node in a mount namespace."""
    require_namespaces("--mount")
    addresses = [one.address for some in psutil.net_if_addrs().values() for one in some if one.family == AF_INET]
    found = next((address for address in addresses if not address.startswith("127.")), None)
    if found is None:
        unavailable("this machine has no address besides those of loopback")
    return found


def _resolving(folder: Path, address: str) -> tuple[Path, tuple[str, ...]]:
    """A file of hosts in which `master.test` has this address, and what a program is started with to read it."""
    hosts = folder / "hosts"
    hosts.write_text(f"{address} master.test\n")
    return hosts, ("unshare", "-m", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh")


def test_a_node_whose_address_changes_registers_again(tmp_path: Path, outer: str) -> None:
    """As in a container that is taken off its network and put on it again."""
    master = ScriptedMaster("0.0.0.0")
    hosts, before = _resolving(tmp_path, "127.0.0.1")
    with master.serving(), running_node(master, tmp_path / "data", before, MASTER_ADDR="master.test"):
        master.wait(lambda: master.beats, 60)
        hosts.write_text(f"{outer} master.test\n")
        master.wait(lambda: len(master.specs) > 1, 3 * CHECK_EVERY_S)
    assert [spec.address for spec in master.specs] == ["127.0.0.1", outer]
    assert len({spec.started for spec in master.specs}) == 1


def test_a_node_after_a_partition_finds_its_route_before_its_heartbeat_arrives(tmp_path: Path, outer: str) -> None:
    """Else it is sent workers that listen where nobody reaches them, or on an interface that is gone."""
    master = ScriptedMaster("0.0.0.0")
    hosts, before = _resolving(tmp_path, "127.0.0.1")
    with running_node(master, tmp_path / "data", before, MASTER_ADDR="master.test"):
        with master.serving():
            master.wait(lambda: master.beats, 60)
        hosts.write_text(f"{outer} master.test\n")
        beats = len(master.beats)
        with master.serving():
            master.wait(lambda: len(master.beats) > beats, 20)
            assert [spec.address for spec in master.specs] == ["127.0.0.1", outer]
