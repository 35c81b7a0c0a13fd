"""Workers replace the files that their node reads, on a kernel that can't confine them.

A real daemon, its workers and a scripted master; the workers run without a sandbox.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.harness import ScriptedMaster, launch, working_node

from rolecall.node.reconcile import Key
from rolecall.spec.state import StopMode, WorkerState

# A node with a fork server, which imports torch.
pytestmark = pytest.mark.slow
SECRET = "the-secret-of-another\n"
KEEP = 1 << 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def master(data: Path) -> Iterator[ScriptedMaster]:
    with working_node(data, ROLECALL_LOG_BYTES=str(KEEP)) as master:
        yield master


@pytest.fixture
def victim(data: Path) -> Path:
    """A file of the node's user that no job may read or change."""
    path = data / "victim"
    path.write_text(SECRET * (KEEP // len(SECRET)))
    return path


def start(master: ScriptedMaster, job: str, code: str) -> Key:
    return master.want(launch(job, "run_code").model_copy(update={"params": {"act": "run_code", "code": code}}))


def works_on(master: ScriptedMaster, after: str) -> None:
    """Another job on the same node runs to its end, and its log arrives."""
    key = master.want(launch(f"after-{after}", "succeed"))
    assert master.ended(key).state is WorkerState.SUCCEEDED
    assert "hello" in master.wait(lambda: master.text(key))


JOINED = 'workdir.progress.write_text(\'{"kind": "joined", "at": "2026-01-01T00:00:00Z"}\\n\')\n'
WAIT = "import time\nwhile not workdir.stop.exists(): time.sleep(0.01)\n"
STAY = JOINED + WAIT + "os._exit(75)\n"


@pytest.mark.parametrize("stream", ["log", "progress"])
def test_a_link_is_neither_shipped_nor_freed(master: ScriptedMaster, victim: Path, stream: str) -> None:
    before = victim.stat().st_blocks
    path = f"workdir.{stream}"
    key = start(master, f"link-{stream}", f"{path}.unlink(missing_ok=True); {path}.symlink_to({str(victim)!r})")
    master.ended(key)
    works_on(master, f"link-{stream}")
    assert all(SECRET.encode() not in shipped for shipped in master.streams.values())
    assert victim.stat().st_blocks == before


def test_a_link_instead_of_a_note_leads_nowhere(master: ScriptedMaster, victim: Path) -> None:
    plant = f"(workdir.path / 'stop.partial').symlink_to({str(victim)!r})\n"
    key = start(master, "note", plant + STAY)
    master.joined(key)
    master.want(launch("note", "run_code"), StopMode.CANCEL)
    assert master.ended(key).state is WorkerState.STOPPED
    assert victim.read_text().startswith(SECRET)


def test_a_link_instead_of_the_whole_folder_leads_nowhere(master: ScriptedMaster, victim: Path) -> None:
    (victim.parent / "other").mkdir()
    (victim.parent / "other/log.txt").write_text(SECRET)
    move = "workdir.path.rename(workdir.path.with_name('moved'))\n"
    link = f"workdir.path.symlink_to({str(victim.parent / 'other')!r})"
    master.ended(start(master, "folder", move + link))
    works_on(master, "folder")
    assert all(SECRET.encode() not in shipped for shipped in master.streams.values())


def test_a_failure_behind_a_link_is_not_reported(master: ScriptedMaster, data: Path) -> None:
    (data / "failure").write_text('{"message": "a secret", "at": "2026-01-01T00:00:00Z"}')
    report = master.ended(
        start(master, "failure", f"workdir.failure.symlink_to({str(data / 'failure')!r}); os._exit(1)")
    )
    assert report.failure is not None
    assert "a secret" not in report.failure.message


@pytest.mark.parametrize("make", ["os.mkfifo", "os.mkdir"])
def test_a_pipe_or_a_folder_holds_up_nobody(master: ScriptedMaster, make: str) -> None:
    """Nor does it end the daemon."""
    keys = list[Key]()
    for name in ("log.txt", "progress.jsonl", "failure.json", "beat", "stop.partial"):
        path = f"(workdir.path / '{name}')"
        plant = f"{path}.unlink(missing_ok=True); {make}({path})\n"
        keys.append(start(master, f"{make}-{name}", plant + WAIT + "os._exit(1)"))
    for key in keys:
        master.wait(lambda key=key: key in master.reports and master.reports[key].pid)
        master.want(master.desired[key].launch, StopMode.CANCEL)
    for key in keys:
        master.ended(key)
    works_on(master, make)


def test_a_line_without_an_end_is_read_once(master: ScriptedMaster) -> None:
    """And what follows it is understood."""
    endless = "workdir.progress.write_text('x' * (8 << 20) + '\\n' * 5000)\n"
    then = JOINED.replace("write_text(", "open('a').write(")
    key = start(master, "endless", endless + then + WAIT)
    works_on(master, "endless")
    assert master.joined(key)
    master.want(master.desired[key].launch, StopMode.CANCEL)
    master.ended(key)


def test_a_failure_of_any_size_is_reported(master: ScriptedMaster) -> None:
    """A report that the master refuses for its size would cut the node off."""
    texts = "{'message': 'ValueError: ' + 'm' * (1 << 20) + '://', 'traceback': 't' * (1 << 24)}"
    code = f"""
from rolecall.spec.report import Failure
failure = Failure(**{texts}, at="2026-01-01T00:00:00Z")
workdir.failure.write_text(failure.model_dump_json())
os._exit(1)
"""
    report = master.ended(start(master, "long-failure", code))
    assert report.failure
    assert report.failure.message.startswith("ValueError: mmm")
    assert len(report.model_dump_json()) < 64 << 10
    raw = "open(workdir.failure, 'w').write('{\"message\": \"' + 'x' * (1 << 24))\nos._exit(1)"
    report = master.ended(start(master, "raw-failure", raw))
    assert report.failure
    assert "without reporting a failure" in report.failure.message


def test_a_report_that_is_refused_goes_without_its_texts(master: ScriptedMaster) -> None:
    for known in list(master.desired):
        master.drop(known)
    master.wait(lambda: not master.reports)
    master.max_bytes = 3000
    code = "from rolecall.spec.report import Failure\n" + (
        "text = Failure(message='m' * 4000, at='2026-01-01T00:00:00Z').model_dump_json()\n"
        "workdir.failure.write_text(text)\nos._exit(1)"
    )
    try:
        report = master.ended(start(master, "refused", code))
    finally:
        master.max_bytes = None
    assert report.failure
    assert "the master refused" in report.failure.message
    works_on(master, "refused")


def test_a_deep_folder_is_deleted_too(master: ScriptedMaster, data: Path) -> None:
    dig = "os.chdir(workdir.path)\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"
    key = start(master, "deep", dig)
    master.ended(key)
    master.drop(key)
    works_on(master, "deep")
    assert not (data / "nodes/n/work/deep").exists()
    # Its files are deleted in a thread; pytest could not delete what is left of them.
    deadline = time.monotonic() + 20
    while list((data / "nodes/n/work").glob(".deleted-*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
