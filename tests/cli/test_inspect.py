# pyright: standard
"""`rolecall timeline`, `stacks`, `profile` and `schedule`."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.master.harness import Client, Node, on_master
from tests.master.test_inspection import WINDOW, running

from rolecall.spec.inspection import Answer, ThreadStack
from rolecall.spec.wire import DesiredWorker

from .command import Done, run, run_at

TIMELINE = Answer(window=WINDOW).model_dump_json().encode()
STACKS = Answer(stacks=(ThreadStack(thread="MainThread", frames=("train.py:7 [bold]",)),)).model_dump_json().encode()


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Client]:
    """A master without nodes."""
    async with on_master(tmp_path / "master") as client:
        yield client


async def answered(master: Client, node: Node, body: bytes, *arguments: str) -> Done:
    """Run the command, and answer the inspection that it begins."""
    command = asyncio.ensure_future(run_at(master, *arguments))
    await answer(master, node, body)
    return await command


async def answer(master: Client, node: Node, body: bytes) -> DesiredWorker:
    """Answer the next inspection of the node's worker."""
    async with asyncio.timeout(10):
        while not (found := [one for one in await node.beat(1.0) if one.inspection]):
            pass
    (worker,) = found
    assert worker.inspection is not None
    path = f"/jobs/{worker.launch.job}/attempts/1/ranks/0/inspections/{worker.inspection.id}"
    assert (await master.internal("PUT", path, content=body)).status_code == 204
    return worker


async def test_a_timeline_is_saved_in_each_form(master: Client, tmp_path: Path) -> None:
    job, node, _ = await running(master)
    file = tmp_path / "saved"
    done = await answered(master, node, TIMELINE, "timeline", job, "--steps", "1", "-o", str(file))
    assert (done.code, done.out.strip()) == (0, str(file))
    assert {one["name"] for one in json.loads(file.read_text())["traceEvents"] if one["ph"] == "X"} == {"step 2", "F 3"}
    done = await answered(master, node, TIMELINE, "timeline", job, "--format", "svg", "-o", str(file), "--json")
    assert json.loads(done.out) == {"format": "svg", "path": str(file)}
    assert ET.parse(file).getroot().tag.endswith("svg")
    await answered(master, node, TIMELINE, "timeline", job, "--format", "json", "-o", str(file))
    assert json.loads(file.read_text())["workers"][0]["role"] == "trainer"
    done = await answered(master, node, TIMELINE, "timeline", job, "--attempt", "1", "-o", str(file))
    assert (done.code, "attempt 7" in (await run_at(master, "timeline", job, "--attempt", "7")).err) == (0, True)
    nowhere = str(tmp_path / "none/saved")
    done = await answered(master, node, TIMELINE, "timeline", job, "-o", nowhere)
    assert (done.code, f"can't write {nowhere}" in done.err) == (2, True)


async def test_a_timeline_has_a_name_that_git_ignores(
    master: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored = [one for one in (Path(__file__).parents[2] / ".gitignore").read_text().split() if one.startswith("/")]
    job, node, _ = await running(master)
    monkeypatch.chdir(tmp_path)
    for form, suffix in (("trace", "trace.json"), ("svg", "svg"), ("json", "json")):
        done = await answered(master, node, TIMELINE, "timeline", job, "--format", form)
        assert done.out.strip() == f"{job}-timeline.{suffix}"
        assert (tmp_path / done.out.strip()).is_file()
    for name in (f"{job}-timeline.svg", f"{job}-schedule.svg", f"{job}-step-4.zip", f"{job}-profile-trainer-0.json.gz"):
        assert any(fnmatch(f"/{name}", one) for one in ignored), name


async def test_stacks_name_the_worker_and_those_that_do_not_answer(master: Client) -> None:
    job, node, _ = await running(master)
    done = await answered(master, node, STACKS, "stacks", job)
    assert done.out.splitlines() == ["trainer-0 on trainer-0, MainThread", "  train.py:7 [bold]"]
    done = await answered(master, node, STACKS, "stacks", job, "--json")
    assert json.loads(done.out)["workers"][0]["threads"][0]["thread"] == "MainThread"
    done = await answered(master, node, Answer(error="it is stopped").model_dump_json().encode(), "stacks", job)
    assert (done.out, done.err) == ("", "no answer from trainer-0 on trainer-0: it is stopped\n")


async def test_stacks_omit_what_every_worker_has(master: Client) -> None:
    server = "/lib/rolecall/worker/fork_server.py"
    frames = ("train.py:7 step", "main.py:9 run", f"{server}:170 Server._become_worker", "<frozen runpy>:88 _run_code")
    starting = ThreadStack(thread="other", frames=(f"{server}:86 Server.serve",))
    beating = ThreadStack(
        thread="beat", frames=("/lib/rolecall/worker/outputs.py:72 keep_beating", "threading.py:1 run")
    )
    own = ThreadStack(thread="beat", frames=("drum.py:1 play",))
    threads = (ThreadStack(thread="MainThread", frames=frames), beating, starting, own)
    body = Answer(stacks=threads).model_dump_json().encode()
    job, node, _ = await running(master)
    shown = (await answered(master, node, body, "stacks", job)).out.splitlines()
    assert shown[:3] == ["trainer-0 on trainer-0, MainThread", "  train.py:7 step", "  main.py:9 run"]
    assert shown[3:5] == ["trainer-0 on trainer-0, other", f"  {server}:86 Server.serve"]
    assert shown[5:] == ["trainer-0 on trainer-0, beat", "  drum.py:1 play"]
    everything = (await answered(master, node, body, "stacks", job, "--all")).out.splitlines()
    assert [text.strip() for text in everything[1:5]] == list(frames)
    assert everything.count("trainer-0 on trainer-0, beat") == 2


async def test_a_profile_is_downloaded_when_it_is_stored(
    master: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job, node, _ = await running(master)
    name = "profile-trainer-0.json.gz"
    command = asyncio.ensure_future(run_at(master, "profile", job, "--role", "trainer", "--steps", "5"))
    worker = await answer(master, node, json.dumps({"artifact": name}).encode())
    assert worker.inspection is not None
    assert (worker.inspection.kind, worker.inspection.steps) == ("profile", 5)
    stored = (await master.worker("PUT", job, 1, "/attempts/1/blobs/trace", content=b"a trace")).json()
    await master.worker("POST", job, 1, "/attempts/1/artifacts", json={**stored, "name": name})
    done = await command
    assert (done.code, done.out.strip()) == (0, f"{job}-{name}")
    assert Path(done.out.strip()).read_bytes() == b"a trace"


async def test_a_job_without_workers_has_nothing_to_look_into(master: Client) -> None:
    job = (await master.submit())["id"]
    for command in (("timeline", job), ("stacks", job), ("profile", job)):
        done = await run_at(master, *command)
        assert done.code == 5
        assert "queued" in done.err


def test_a_schedule_is_drawn_and_its_bubble_is_the_known_one(tmp_path: Path) -> None:
    svg, csv = tmp_path / "picture.svg", tmp_path / "schedule.csv"
    done = run("schedule", "GPipe", "--ranks", "4", "--micro-batches", "8", "--svg", str(svg), "--csv", str(csv))
    title, *rows = done.out.splitlines()
    # (p - 1) / (m + p - 1) = 3 / 11
    assert title.startswith("GPipe, 4 ranks, 8 micro-batches: bubble 27.3%")
    drawn = [row.split() for row in rows if row.startswith("rank ")]
    assert [(row[1], row.count("F0")) for row in drawn] == [(str(rank), 1) for rank in range(4)]
    assert ET.parse(svg).getroot().tag.endswith("svg")
    again = run("schedule", str(csv), "--json")
    document, direct = json.loads(again.out), json.loads(run("schedule", "GPipe", "--json").out)
    assert document["ranks"] == direct["ranks"]
    assert document["bubble"] == pytest.approx(3 / 11)


def test_a_schedule_that_a_terminal_splits_names_the_option_for_one_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda _: True)
    monkeypatch.setattr("rolecall.cli.schedule.out.width", 80)
    arguments = ("schedule", "Interleaved1F1B", "--virtual-stages", "2")
    split = run(*arguments).out.splitlines()
    assert split[-1] == "--svg FILE writes a picture with each rank in one row."
    assert all(len(line) <= 80 and not line.endswith("…") for line in split)
    assert "--svg FILE" not in run(*arguments, "--svg", str(tmp_path / "a.svg")).out
    assert "--svg FILE" not in run("schedule", "1F1B", "--ranks", "2", "--micro-batches", "2").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["1f1b"], "did you mean '1F1B'? valid: "),
        (["Interleaved1F1B", "--micro-batches", "9"], "nearest valid: "),
        (["GPipe", "--virtual-stages", "2"], "--virtual-stages is 2; GPipe requires"),
        (["GPipe", "--svg", "/nowhere/a.svg"], "can't write /nowhere/a.svg"),
    ],
)
def test_what_is_no_schedule_is_refused_with_what_is_valid(arguments: Sequence[str], said: str) -> None:
    done = run("schedule", *arguments)
    assert done.code == 2
    assert said in done.err
