# pyright: standard
"""The commands that show jobs and nodes, with a master of the harness."""

import asyncio
import csv
import io
import json
import re
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Group
from tests.master import harness
from tests.master.harness import ONE_TRAINER, TOKEN, TOY, Client, failure, line, on_master, one_trainer
from tests.master.test_series import job_with_full_streams

from rolecall.cli.completion import job_ids, workload_names
from rolecall.cli.output import Terminal
from rolecall.cli.watch import _draw_to_end, drawn_metrics, picture
from rolecall.client import Client as Connected
from rolecall.client import Connection
from rolecall.client.plot import table
from rolecall.master.catalogue import Catalogue
from rolecall.master.store import events
from rolecall.spec.api import COORDINATES, RETENTION, WorkloadDocument
from rolecall.spec.comparison import OTHER_WORKLOADS
from rolecall.spec.job import JobOverview
from rolecall.spec.report import TimeSpent
from rolecall.spec.state import JobState, WorkerState
from rolecall.spec.workload import Params

from .command import run, run_at

LOG = (
    b"2026-01-01 10:00:00.000+00:00 INFO an old record\n"
    b"2999-01-01 10:00:00.000+00:00 INFO a new record\nprinted [red]\n"
)

SPENT = TimeSpent(steps=150, data=120, wait=0.1)


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Client]:
    """A master without nodes."""
    async with on_master(tmp_path / "master") as client:
        yield client


async def two_jobs(master: Client) -> tuple[str, str]:
    """A job that has succeeded, and one that runs, with other parameters."""
    node = await one_trainer(master)
    ids: list[str] = []
    for steps, rate, score in ((3, 0.1, 0.5), (5, 0.25, 0.75)):
        params = {"steps": steps, "learning_rate": rate}
        job = (await master.submit(roles=ONE_TRAINER, params=params, name=f"job [{steps}]"))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        values = [line("step", step=step, steps=steps, metrics={"loss": 1 / step}) for step in range(1, 4)]
        values.append(line("step", step=3, steps=steps, epoch=1, metrics={"validation_auc": score}, spent=SPENT))
        if not ids:
            values.append(line("result", metrics={"test_auc": score, "test_loss": float("inf")}))
        await node.progress(worker, *values)
        await node.ship(worker, "log", LOG)
        await master.checkpoint(job, 1, 2)
        await master.checkpoint(job, 1, 3)
        if not ids:
            await node.say(worker, WorkerState.SUCCEEDED, exit_code=0)
            await master.until(job, "succeeded")
        else:
            await master.until(job, "running", also=lambda one: one["progress"]["metrics"])
        ids.append(job)
    return ids[0], ids[1]


@pytest.mark.slow
async def test_everything_about_a_job_and_its_cluster(master: Client, tmp_path: Path) -> None:
    """One test for all, because the jobs take the time."""
    first, second = await two_jobs(master)
    await _show(master, first)
    await _events_and_checkpoints(master, first, tmp_path)
    await _metrics(master, second)
    await _compare(master, first, second)
    await _logs(master, second)
    async with asyncio.timeout(30):
        followed = await run_at(master, "logs", first, "--since", "1h", "--follow")
    assert followed.out.splitlines() == [f"[trainer-0] {text}" for text in LOG.decode().splitlines()[1:]]
    await _top(master, second)
    await _watch(master, second)
    deleted = await run_at(master, "delete", first, "toy-none", second, "--force", "--json")
    assert (deleted.code, json.loads(deleted.out)) == (4, {"deleted": [first, second]})
    assert "there is no job 'toy-none'" in deleted.err
    assert (await run_at(master, "events", first)).code == 4


async def _show(master: Client, job: str) -> None:
    shown = (await run_at(master, "show", job)).out
    facts = dict(text.split(maxsplit=1) for text in shown.partition("\n\n")[0].splitlines())
    assert facts["job"] == f"{job} job [3]"
    assert facts["steps"] == "data 2m00s, compute 30s"
    assert facts["scores"] == "validation_auc=0.5000"
    assert facts["result"] == "test_auc=0.5000 test_loss=not finite"
    assert "  steps  3\n" in shown
    assert "learning_rate" not in shown, "it has its default"
    assert [text.split()[0] for text in shown.partition("checkpoints\n")[2].splitlines()[1:3]] == ["3", "2"]
    assert "submitted by admin" in shown
    assert shown.rstrip().endswith("succeeded")


async def _events_and_checkpoints(master: Client, job: str, folder: Path) -> None:
    messages = [one["message"] for one in json.loads((await run_at(master, "events", job, "--json")).out)["events"]]
    followed = await run_at(master, "events", job, "--follow", "--json")
    assert [json.loads(text)["message"] for text in followed.out.splitlines()] == messages
    plain = (await run_at(master, "events", job)).out.splitlines()
    assert all(text.endswith(message) for text, message in zip(plain, messages, strict=True))
    assert (plain[0].split()[2], plain[-1].split()[4]) == ("queued", "succeeded")
    listed = (await run_at(master, "checkpoints", job)).out.splitlines()
    assert [text.split()[:3] for text in listed[1:]] == [["3", "1", "1"], ["2", "1", "1"]]
    for given, step in (((), 3), (("--step", "2"), 2)):
        file = folder / f"{step}.zip"
        done = await run_at(master, "checkpoints", job, "--download", *given, "-o", str(file), "--json")
        assert json.loads(done.out) == {"step": step, "path": str(file)}
        assert json.loads(zipfile.ZipFile(file).read("manifest.json"))["step"] == step
    missing = await run_at(master, "checkpoints", job, "--download", "--step", "9", "-o", str(folder / "9.zip"))
    assert (missing.code, "there are: 3, 2" in missing.err) == (4, True)
    assert (await run_at(master, "checkpoints", job, "--step", "9")).code == 2


async def _metrics(master: Client, job: str) -> None:
    shown = [text.split() for text in (await run_at(master, "metrics", job)).out.splitlines()]
    assert shown[1:] == [
        ["loss", "trainer-0", "█▃▁", "3", "0.3333", "0.3333", "1"],
        ["validation_auc", "trainer-0", "▅", "3", "0.7500", "0.7500", "0.7500"],
    ]
    rows = list(csv.DictReader(io.StringIO((await run_at(master, "metrics", job, "--csv")).out)))
    assert [(row["step"], row["loss"], row["role"]) for row in rows][:2] == [
        ("1", "1.0", "trainer"),
        ("2", "0.5", "trainer"),
    ]
    only = (await run_at(master, "metrics", job, "--csv", "--metric", "validation_auc")).out.splitlines()
    assert (only[0].split(",")[-1], [text.split(",")[-1] for text in only[1:]]) == ("validation_auc", ["0.75"])
    assert json.loads((await run_at(master, "metrics", job, "--json")).out)["series"][0]["role"] == "trainer"
    assert (await run_at(master, "metrics", job, "--json", "--metric", "loss")).code == 2
    first, second = [await run_at(master, "metrics", job, "--attempt", attempt) for attempt in ("1", "2")]
    assert [text.split() for text in first.out.splitlines()] == shown
    assert (second.code, f"job {job} has no attempt 2; its only attempt is 1 (asked" in second.err) == (4, True)
    wrong = await run_at(master, "metrics", job, "--metric", "auc")
    said = "--metric auc: the job has reported no metric 'auc'; valid: loss, validation_auc"
    assert (wrong.code, wrong.err) == (2, f"rolecall: {said}\n")
    wrong = await run_at(master, "metrics", job, "--metric", "lossy")
    said = "--metric lossy: the job has reported no metric 'lossy'; did you mean 'loss'? valid: loss, validation_auc"
    assert (wrong.code, wrong.err) == (2, f"rolecall: {said}\n")


async def test_a_spreadsheet_runs_no_name_of_a_metric(master: Client) -> None:
    node = await one_trainer(master)
    job = (await master.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    ordinary = ["accuracy", "f1@k", "l2-norm", "p=0.5", "top 5", "ü"]
    formulas = ["=1+1", "+1", "-loss", "@SUM(A1)", "\t=1", "a;=1", "a\t-1", ' "=1', "\uff1d1", "a;;@b;c"]
    values = {name: -0.5 for name in [*ordinary, *formulas]}
    await node.progress(worker, line("step", step=1, steps=3, metrics=values))
    await master.until(job, "running", also=lambda one: one["progress"]["metrics"])
    (row,) = csv.DictReader(io.StringIO((await run_at(master, "metrics", job, "--csv")).out))
    named = {name: value for name, value in row.items() if name not in COORDINATES}
    assert set(named) == {
        *ordinary,
        *("'=1+1", "'+1", "'-loss", "'@SUM(A1)", "'\t'=1", "a;'=1", "a\t'-1", "' \"=1", "'\uff1d1", "a;;'@b;c"),
    }
    assert set(named.values()) == {"-0.5"}, "numbers stay numbers"
    only = (await run_at(master, "metrics", job, "--csv", "--metric", "-loss")).out.splitlines()
    assert only[0].endswith(",'-loss")


async def _compare(master: Client, first: str, second: str) -> None:
    document = json.loads((await run_at(master, "compare", first, second, "--json")).out)
    assert document["differences"] == {"params.steps": ["3", "5"], "params.learning_rate": ["0.1", "0.25"]}
    assert document["metrics"]["validation_auc"] == [0.5, 0.75]
    assert document["metrics"]["test_auc"] == [0.5, None]
    shown = [text.split() for text in (await run_at(master, "compare", first, second)).out.splitlines()]
    assert shown[0] == ["DIFFERENCE", first, second]
    assert ["state", "succeeded", "running"] in shown
    assert ["steps", "3", "5"] in shown
    assert ["name", "job", "[3]", "job", "[5]"] in shown
    assert ["validation_auc", "↑", "0.5000", "0.7500"] in shown
    assert ["test_auc", "↑", "0.5000", "-"] in shown
    assert ["test_loss", "not", "finite", "-"] in shown
    assert (await run_at(master, "compare", first)).code == 2
    twice = await run_at(master, "compare", first, second, first)
    assert (twice.code, twice.err) == (2, f"rolecall: job {first} is given twice; compare needs different jobs\n")


async def test_a_comparison_on_a_terminal_shows_where_long_values_differ(
    master: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["same" * 22 + end for end in ("first", "second")]
    ids = [(await master.submit(roles=ONE_TRAINER, name=name))["id"] for name in names]
    whole = (await run_at(master, "compare", *ids)).out
    for name in names:
        assert name in whole, "a pipe gets everything"
        assert name in (await run_at(master, "compare", *ids, "--json")).out
    sent = io.StringIO()
    for module in ("output", "compare"):
        monkeypatch.setattr(f"rolecall.cli.{module}.out", Terminal(file=sent, highlight=False, width=200))
    assert (await run_at(master, "compare", *ids)).code == 0
    (row,) = [text for text in sent.getvalue().splitlines() if text.startswith("name ")]
    assert [text.startswith("…") for text in row.split()[1:]] == [True, True]
    assert [text.rpartition("same")[2] for text in row.split()[1:]] == ["first", "second"]
    assert "same" * 15 not in row


@pytest.mark.parametrize(("count", "width", "first"), [(2, 60, "name"), (4, 80, "name"), (5, 80, "1"), (9, 120, "1")])
async def test_a_comparison_on_a_narrow_terminal_wraps_no_cell(
    master: Client, monkeypatch: pytest.MonkeyPatch, count: int, width: int, first: str
) -> None:
    names = [f"adagrad, learning rate 0.0{number} and three epochs" for number in range(count)]
    jobs = [await master.submit(name=name, params={"steps": len(names) - at}) for at, name in enumerate(names)]
    ids = [job["id"] for job in jobs]
    whole = (await run_at(master, "compare", *ids)).out.splitlines()
    assert whole[0].split() == ["DIFFERENCE", *ids], "a pipe gets everything"
    sent = io.StringIO()
    for module in ("output", "compare"):
        terminal = Terminal(file=sent, highlight=False, soft_wrap=True, width=width)
        monkeypatch.setattr(f"rolecall.cli.{module}.out", terminal)
    assert (await run_at(master, "compare", *ids)).code == 0
    shown = [text for text in sent.getvalue().splitlines() if text]
    assert max(map(len, shown)) <= width
    assert set(ids) <= set(sent.getvalue().split()), "ids are whole"
    numbers = [str(number) for number in range(1, count + 1)]
    key = ["JOB", *numbers] if first == "1" else []
    own = [] if key else ["name"]
    assert [text.split()[0] for text in shown] == [*key, "DIFFERENCE", *own, "steps", "none"], "each row is one line"
    assert shown[-2].split() == ["steps", *reversed(numbers)]
    if key:
        assert shown[1].split() == ["1", ids[0], *names[0].split()]


async def test_a_comparison_keeps_an_id_whole_that_is_longer_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LongNames(OtherParams):
        learning_rate_of_all_trainers: float = 0.1

    other = replace(TOY, name="a-workload-of-many-words", params=LongNames)
    monkeypatch.setattr(harness, "CATALOGUE", Catalogue({"toy": TOY, other.name: other}))
    async with on_master(tmp_path) as master:
        params = {"learning_rate_of_all_trainers": 0.2}
        ids = [(await master.submit(workload=other.name, params=params))["id"], (await master.submit())["id"]]
        ids.append((await master.submit(name="a long name of many words " * 2))["id"])
        sent = io.StringIO()
        for module in ("output", "compare"):
            terminal = Terminal(file=sent, highlight=False, soft_wrap=True, width=88)
            monkeypatch.setattr(f"rolecall.cli.{module}.out", terminal)
        assert (await run_at(master, "compare", *ids)).code == 0
    assert ["DIFFERENCE", *ids] in [text.split() for text in sent.getvalue().splitlines()]


async def test_names_of_metrics_add_no_lines(master: Client) -> None:
    node = await one_trainer(master)
    job = (await master.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    other = (await master.submit(roles=ONE_TRAINER))["id"]
    await node.say(worker, WorkerState.RUNNING)
    await node.progress(worker, line("step", step=1, metrics={"loss": 1.0, "z\nvalidation_auc": 0.9999}))
    await master.until(job, "running", also=lambda one: one["progress"]["metrics"])
    for command in (("compare", job, other), ("metrics", job), ("show", job)):
        shown = (await run_at(master, *command)).out.splitlines()
        assert not [text for text in shown if text.startswith("validation_auc")]
        assert [text for text in shown if "z\\nvalidation_auc" in text]


async def test_a_comparison_lists_only_what_differs(master: Client) -> None:
    first, second, other = [
        (await master.submit(roles=ONE_TRAINER, name="same", params={"steps": steps}))["id"] for steps in (3, 3, 5)
    ]
    same = (await run_at(master, "compare", first, second)).out.splitlines()
    assert same[0] == "the jobs have the same state, name, workload, roles and parameters"
    assert same[2:] == ["none of the jobs has metrics"]
    shown = [text.split() for text in (await run_at(master, "compare", first, other)).out.splitlines()]
    assert shown[:3] == [["DIFFERENCE", first, other], ["steps", "3", "5"], []]


async def test_a_comparison_has_no_blank_cells(master: Client) -> None:
    named = (await master.submit(name="first"))["id"]
    other = (await master.submit())["id"]
    shown = [text.split() for text in (await run_at(master, "compare", named, other)).out.splitlines()]
    assert shown[1] == ["name", "first", "-"]
    raw = json.loads((await run_at(master, "compare", named, other, "--json")).out)
    assert [job["name"] for job in raw["jobs"]] == ["first", ""]


class OtherParams(Params):
    """Parameters of which one has the name of another workload's."""

    steps: int = 10
    size: int = 1
    texture: str = "rough"


async def test_a_comparison_of_different_workloads_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = "A workload of many words. " * 4 + "The end."
    other = replace(TOY, name="other", params=OtherParams, summary=summary)
    monkeypatch.setattr(harness, "CATALOGUE", Catalogue({"toy": TOY, "other": other}))
    async with on_master(tmp_path) as master:
        first = (await master.submit())["id"]
        second = (await master.submit(workload="other", params={"size": 3}))["id"]
        shown = (await run_at(master, "compare", first, second)).out.splitlines()
        page = (await master.user("GET", f"/ui/compare?job={first}&job={second}")).text
        described = (await run_at(master, "workloads", "other")).out.splitlines()
        sent = io.StringIO()
        for module in ("output", "compare", "workloads"):
            terminal = Terminal(file=sent, highlight=False, soft_wrap=True, width=60)
            monkeypatch.setattr(f"rolecall.cli.{module}.out", terminal)
        for command, sentence in (
            (("compare", first, second), OTHER_WORKLOADS),
            (("workloads", "other"), f"other: {summary}"),
        ):
            sent.seek(sent.truncate(0))
            assert (await run_at(master, *command)).code == 0
            wrapped = sent.getvalue().partition("\n\n")[0].splitlines()
            assert [word for text in wrapped for word in text.split()] == sentence.split(), "no word is broken"
            assert max(map(len, wrapped)) <= 60
    assert described[:2] == [f"other: {summary}", ""]
    assert shown[:2] == [OTHER_WORKLOADS, ""]
    assert [text.split()[0] for text in shown[3:5]] == ["workload", "size"]
    assert shown[5] == ""
    assert OTHER_WORKLOADS in page
    assert "size" in page
    assert "texture" not in page


async def test_a_line_replaces_a_table_without_rows(master: Client) -> None:
    async def said(*command: str) -> str:
        return (await run_at(master, *command)).out

    assert await said("jobs") == "no jobs\n"
    assert await said("jobs", "--state", "failed") == "no jobs meet the conditions\n"
    assert await said("nodes") == "no node has registered\n"
    assert (await said("top", "--once")).splitlines()[2:] == ["no node has registered", "", "no job runs or waits"]
    assert await said("prune", "--older-than", "30d", "--dry-run") == "no such job ended before that time\n"
    for since in ("0s", "2999-01-01T00:00:00+01:00"):
        assert await said("audit", "--since", since) == "the audit log has no such entries\n"
    job, other = [(await master.submit())["id"] for _ in range(2)]
    for ending in (" yet", ""):
        for what in ("checkpoints", "artifacts", "metrics"):
            assert await said(what, job) == f"job {job} has no {what}{ending}\n"
        download = await run_at(master, "checkpoints", job, "--download")
        assert (download.code, download.err) == (4, f"rolecall: job {job} has no checkpoints{ending}\n")
        assert (f"No files{ending}." in (await master.user("GET", f"/ui/jobs/{job}")).text) is True
        await master.user("POST", f"/jobs/{job}/cancel")
    assert (await said("compare", job, other)).splitlines()[-1] == "none of the jobs has metrics"


async def _logs(master: Client, job: str) -> None:
    lines = [f"[trainer-0] {text}" for text in LOG.decode().splitlines()]
    assert (await run_at(master, "logs", job)).out.splitlines() == lines
    assert (await run_at(master, "logs", job, "--tail", "1")).out.splitlines() == lines[2:]
    empty = await run_at(master, "logs", job, "--grep", "nothing like it")
    assert (empty.code, empty.out, empty.err) == (0, "", "no line matches\n")
    for foreign in (("--role", "stage"), ("--rank", "99", "--follow")):
        missing = await run_at(master, "logs", job, *foreign)
        assert (missing.code, "attempt 1 has: trainer (rank 0)" in missing.err) == (4, True)
    assert (await run_at(master, "logs", job, "--since", "1h")).out.splitlines() == lines[1:]
    assert (await run_at(master, "logs", job, "--grep", "NEW REC", "--grep", "old rec")).out.splitlines() == lines[:2]
    assert (await run_at(master, "logs", job, "--grep", "record", "--tail", "1")).out.splitlines() == lines[1:2]
    assert (await run_at(master, "logs", job, "--grep", "(new|old)")).out == ""
    both = await run_at(master, "logs", job, "--since", "1h", "--grep", "record", "--json")
    assert json.loads(both.out) == [lines[1]]
    for time in ("2026-01-01T10:00:01Z", "2026-01-01 12:00:01.5+02:00"):
        assert (await run_at(master, "logs", job, "--since", time)).out.splitlines() == lines[1:]
    assert (await run_at(master, "logs", job, "--since", "2026-01-01T09:00:00Z")).out.splitlines() == lines
    assert (await run_at(master, "logs", job, "--since", "soon")).code == 2
    assert (await run_at(master, "logs", job, "--grep", "x" * 201)).code == 5


async def _top(master: Client, job: str) -> None:
    shown = (await run_at(master, "top")).out
    assert "nodes: 1 of 1 alive   compute slots: 1 of 2 in use   jobs: 1 running, 0 queued" in shown
    assert f"trainer-0 of {job}" in shown
    assert "job [5]" in shown
    for view in (shown, (await run_at(master, "jobs", "--state", "running")).out):
        assert "step 3/5, epoch 1, loss 0.3333, validation_auc 0.7500 (↑ is better)" in view
    document = json.loads((await run_at(master, "top", "--json")).out)
    assert ([one["id"] for one in document["jobs"]], len(document["nodes"])) == ([job], 1)


async def add_artifact(master: Client, job: str, name: str) -> None:
    """Store an artifact of 7 bytes."""
    stored = await master.worker("PUT", job, 1, f"/attempts/1/blobs/{name}", content=b"content")
    notice = {"name": name, **stored.json()}
    assert (await master.worker("POST", job, 1, "/attempts/1/artifacts", json=notice)).status_code == 201


@pytest.mark.parametrize("width", [45, 70])
async def test_nodes_and_artifacts_fit_a_narrow_terminal(
    master: Client, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    node = await one_trainer(master)
    job = (await master.submit(roles=ONE_TRAINER))["id"]
    await node.workers()
    await add_artifact(master, job, "model.zip")
    sent = io.StringIO()
    terminal = Terminal(file=sent, highlight=False, soft_wrap=True, width=width)
    monkeypatch.setattr("rolecall.cli.output.out", terminal)
    for command in (("nodes",), ("artifacts", job)):
        assert (await run_at(master, *command)).code == 0
    nodes, one, artifacts, file = [text.rstrip() for text in sent.getvalue().splitlines()]
    assert ("HEARTBEAT" in nodes, "VERSION" in nodes) == (width == 70, False)
    assert one.startswith("trainer-0")
    assert artifacts.split() == ["NAME", "SIZE", "SHA256"]
    assert file.startswith("model.zip  7 B ")
    assert file.endswith("…")
    assert max(map(len, (nodes, one, artifacts, file))) <= width


async def test_a_download_says_what_it_wrote_and_prints_the_path_for_scripts(master: Client, tmp_path: Path) -> None:
    node = await one_trainer(master)
    job = (await master.submit(roles=ONE_TRAINER))["id"]
    await node.workers()
    await add_artifact(master, job, "model.zip")
    await master.checkpoint(job, 1, 2)
    path = tmp_path / "a [1].zip"
    for command in (("artifacts", job, "model.zip"), ("checkpoints", job, "--download")):
        done = await run_at(master, *command, "-o", str(path))
        assert (done.code, done.out) == (0, f"{path}\n")
        assert re.fullmatch(rf"wrote \d+ B to {re.escape(str(path))}\n", done.err)


async def test_events_about_old_checkpoints_hide_no_others(master: Client) -> None:
    job = (await master.submit())["id"]
    async with master.master.database.write() as connection:
        for step in range(12):
            await events.add(connection, job, master.master.clock.now(), RETENTION, f"deleted step {step}")
    shown = (await run_at(master, "show", job)).out.partition("\nevents")[2].splitlines()
    assert len(shown) == 3
    assert shown[0] == "", "no event is omitted"
    assert shown[1].endswith("submitted by admin")
    assert shown[2].endswith("deleted step 11")
    terminal = screen()

    def draw() -> None:
        with Connected(Connection(str(master.http.base_url), TOKEN)) as client:
            terminal.print(picture(terminal, client.job(job), client.events(job), [], []))

    await asyncio.to_thread(draw)
    drawn = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert ("submitted by admin" in drawn, "deleted" in drawn) == (True, False)


def screen() -> Terminal:
    return Terminal(file=io.StringIO(), force_terminal=True, highlight=False, width=60, height=30)


async def _watch(master: Client, job: str) -> None:
    terminal = screen()

    def draw() -> None:
        with Connected(Connection(str(master.http.base_url), TOKEN)) as client:
            rows = table(client.metrics(job, lowest_rank=True))
            names = drawn_metrics(rows, (), client.workload("toy").metrics)
            shown = picture(terminal, client.job(job), client.events(job), rows, names)
            assert isinstance(shown, Group)
            terminal.print(shown)

    await asyncio.to_thread(draw)
    drawn = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "step 3/5, epoch 1" in drawn
    assert "loss of trainer-0: 0.3333" in drawn
    assert "validation_auc of trainer-0: 0.7500 at step 3" in drawn
    assert drawn.count("┤") == 9, "the curve of the loss"
    assert "━" * 36 in drawn


async def test_watch_reads_each_curve_once_however_many_workers_report_it(
    master: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await job_with_full_streams(master, 3, 10 << 10)
    assert (await run_at(master, "cancel", job)).code == 0
    monkeypatch.setattr("rolecall.master.api.files._MOST_BYTES", 150)
    refused = await run_at(master, "metrics", job)
    assert (refused.code, f"rolecall metrics {job} --attempt N" in refused.err) == (5, True)
    monkeypatch.setattr("rolecall.cli.watch.out", terminal := screen())

    def watch() -> None:
        with Connected(Connection(str(master.http.base_url), TOKEN)) as client:
            _draw_to_end(client, job, ())

    await asyncio.to_thread(watch)
    assert "loss of trainer-0: 0.5" in terminal.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_without_a_terminal_watch_prints_lines_and_has_the_exit_code_of_the_outcome(master: Client) -> None:
    node = await one_trainer(master)
    job = (await master.submit(roles=ONE_TRAINER, max_restarts=0))["id"]
    watching = asyncio.ensure_future(run_at(master, "watch", job))
    (worker,) = await node.workers()
    await node.say(
        worker, WorkerState.FAILED, exit_code=1, failure=failure("ValueError: broken", traceback="line [7]\nline 8")
    )
    done = await watching
    assert done.code == 1
    assert done.out == "toy failed: trainer-0 on trainer-0: ValueError: broken\n"
    assert "submitted by admin" in done.err
    assert f"for the traceback: rolecall show {job}" in done.err
    assert "\nline [7]\nline 8\n" in (await run_at(master, "show", job)).out


async def test_a_failure_without_a_traceback_leads_to_the_log(master: Client) -> None:
    node = await one_trainer(master)
    job = (await master.submit(roles=ONE_TRAINER, max_restarts=0))["id"]
    watching = asyncio.ensure_future(run_at(master, "watch", job))
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.FAILED, exit_code=1, failure=failure("NonFiniteLoss: at step 3", traceback=""))
    done = await watching
    assert "traceback" not in done.err
    assert f"for the output of its workers: rolecall logs {job}" in done.err


async def test_a_shell_completes_jobs_and_workloads(master: Client) -> None:
    job = (await master.submit(name="first"))["id"]
    found = await complete(master, "rolecall show to")
    assert found == [job]
    assert await complete(master, "rolecall show x") == []
    assert await complete(master, "rolecall workloads t") == ["toy"]
    assert await complete(master, "rolecall wat") == ["watch"]


async def test_the_name_of_a_job_does_not_get_into_a_shell(master: Client) -> None:
    """Zsh's completion evaluates the help text, and Typer reads markup in it."""
    job = (await master.submit(name=r"x\$(touch pwned) [/] `id`"))["id"]
    words = {"_TYPER_COMPLETE_ARGS": "rolecall show to", "_ROLECALL_COMPLETE": "complete_zsh"}
    done = await run_at(master, **words)
    assert done.out.strip() == f"""_arguments '*: :(("{job}":"queued"))'"""


def test_no_answer_of_a_hostile_master_gets_into_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zsh evaluates values and help texts, and bash inserts values into the command without quotes."""
    strange = [
        r"x\$(touch pwned)",
        "$(id)",
        "a`id`",
        "a;id",
        "a b",
        "a\n",
        "a/b",
        "a'b",
        "~a",
        "-a",
        "a[1]",
        "a:b",
        "ü",
        "",
    ]
    summary = "Näive \"PPO\", REINFORCE (RL): 'a/b' \\$(touch pwned) `id` [red]x[/]\n; <y> & {z} * ~ ! # 2-3."
    jobs = [JobOverview.model_construct(id=id, state=JobState.QUEUED) for id in [*strange, "toy_2.a-0f"]]
    workloads = [WorkloadDocument.model_construct(name=name, summary=summary) for name in [*strange, "my_toy-2.a"]]
    monkeypatch.setattr(Connected, "jobs", lambda *_: jobs)
    monkeypatch.setattr(Connected, "workloads", lambda *_: workloads)
    for name, value in (("ROLECALL_URL", "http://master"), ("ROLECALL_TOKEN", TOKEN)):
        monkeypatch.setenv(name, value)
    assert job_ids("") == [("toy_2.a-0f", "queued")]
    shown = "Nive PPO, REINFORCE (RL): ab (touch pwned) id redx y z 2-3."
    assert [(name, " ".join(text.split())) for name, text in workload_names("")] == [("my_toy-2.a", shown)]


async def test_metrics_of_the_job_and_schedules_are_completed(master: Client) -> None:
    job = (await master.submit())["id"]
    assert await complete(master, f"rolecall metrics {job} --metric lo") == ["loss"]
    assert await complete(master, f"rolecall watch {job} --metric lo") == ["loss"]
    assert await complete(master, "rolecall schedule Interleaved") == ["Interleaved1F1B", "InterleavedZeroBubble"]


async def test_completion_is_silent_without_a_cluster(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "rolecall show x", "COMP_CWORD": "2", "_ROLECALL_COMPLETE": "complete_bash"}
    done = await asyncio.to_thread(
        lambda: run(XDG_CONFIG_HOME=str(tmp_path), ROLECALL_URL="", ROLECALL_TOKEN="", **words)
    )
    assert (done.out.strip(), done.err) == ("", "")


async def complete(master: Client, typed: str) -> list[str]:
    """The words that a shell's completion offers for the last word."""
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_ROLECALL_COMPLETE": "complete_bash"}
    return (await run_at(master, **words)).out.split()


def test_without_a_cluster_the_error_says_how_to_start_one(tmp_path: Path) -> None:
    done = run("top", XDG_CONFIG_HOME=str(tmp_path), ROLECALL_URL="", ROLECALL_TOKEN="")
    assert (done.code, "start one with `rolecall local`" in done.err) == (6, True)


@pytest.mark.parametrize("errors", [["InputError: no file", "InputError: no file"], ["InputError: no file", "OSError"]])
async def test_each_error_is_news_once_although_another_worker_had_it_earlier(
    master: Client, errors: list[str]
) -> None:
    node = await one_trainer(master, slots=2)
    job = (await master.submit(roles={"parameter-server": 0, "trainer": 2}))["id"]
    late, early = await node.workers(2)
    for worker in (late, early):
        await node.say(worker, WorkerState.RUNNING)
    now = datetime.now(UTC)
    for worker, error, at in ((late, errors[0], now), (early, errors[1], now - timedelta(seconds=1))):
        reason = failure(error, retryable=False, at=at)
        await node.say(worker, WorkerState.FAILED, exit_code=1, failure=reason)
        await master.until(job, "stopping" if worker is late else "failed")
    shown = await run_at(master, "show", job, "--follow")
    assert "trainer-1 on trainer-0: " in shown.out
    assert [shown.err.count(error) for error in errors] == [1, 1]
