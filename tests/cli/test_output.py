# pyright: standard
"""Control characters in untrusted text never reach the terminal."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from tests.conftest import ROLECALL
from tests.cpu_time import is_within
from tests.master.harness import failure, on_master, running

from rolecall.cli import events, follow, logs, metrics, output, tokens
from rolecall.cli.audit import audit_table
from rolecall.cli.jobs import job_table
from rolecall.cli.output import (
    _UNBOUNDED,
    Terminal,
    fitting,
    goodput,
    make_table,
    progress,
    roles,
    time_heading,
    word_breaks,
)
from rolecall.cli.top import view
from rolecall.client import Client, UnknownName
from rolecall.spec.access import AuditEntry, TokenDocument
from rolecall.spec.api import Event, MetricDocument
from rolecall.spec.job import JobDocument, JobOverview, Progress
from rolecall.spec.resources import Resources
from rolecall.spec.role import Role
from rolecall.spec.state import JobState, WorkerState
from rolecall.workloads.catalogue import load

from .command import run_at

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
HOSTILE = "\x1b]52;c;eA==\x07 \x1b[2J [red]"


def test_texts_send_no_control_characters_to_a_terminal() -> None:
    sent = StringIO()
    terminal = Terminal(file=sent, force_terminal=True, highlight=False, width=200)
    table = Table("A")
    table.add_row(escape(HOSTILE))
    terminal.print(f"[bold]{escape(HOSTILE)}[/]")
    terminal.print(table)
    text = sent.getvalue()
    assert text.count(r"\x1b]52;c;eA==\x07 \x1b[2J [red]") == 2
    assert "\x1b]" not in text
    assert "\x1b[2J" not in text
    assert "\x1b[1m" in text, "its own styles stay"


async def test_a_log_leaves_the_terminal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_master(tmp_path) as master:
        node, job, worker = await running(master)
        await node.ship(worker, "log", f"{HOSTILE}\x1b[8mconcealed\n".encode())
        assert (await run_at(master, "logs", job)).out.endswith("\x1b[8mconcealed\n")
        monkeypatch.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda _: True)
        shown = (await run_at(master, "logs", job)).out
    assert r"\x1b]52;c;eA==\x07 \x1b[2J [red]" in shown
    assert shown.endswith("\x1b[8mconcealed\x1b[0m\n\x1b[0m")


RECORD = (
    '{"time": "2026-01-01T10:00:00.000+00:00", "level": "ERROR", "logger": "a.b", "message": "failed", "rank": 0, '
    '"traceback": "Traceback:\\n  \\u001b[2J"}'
)


async def test_a_terminal_shows_records_in_json_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_master(tmp_path) as master:
        node, job, worker = await running(master)
        await node.ship(worker, "log", f'{{"loss": 1}}\n{RECORD}\n{RECORD[:50]}'.encode())
        await node.say(worker, WorkerState.SUCCEEDED, exit_code=0)
        await master.until(job, "succeeded")
        raw = [f"[trainer-0] {text}" for text in ('{"loss": 1}', RECORD, RECORD[:50])]
        for follow in ((), ("--follow",)):
            assert (await run_at(master, "logs", job, *follow)).out.splitlines() == raw
            shortened = (await run_at(master, "logs", job, "--no-prefix", *follow)).out
            assert shortened.splitlines() == ['{"loss": 1}', RECORD, RECORD[:50]]
        assert json.loads((await run_at(master, "logs", job, "--no-prefix", "--json")).out)[1] == RECORD
        found = (await run_at(master, "logs", job, "--grep", '"rank": 0')).out
        assert found.splitlines() == raw[1:2], "the search is in the record as it is"
        monkeypatch.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda _: True)
        for follow in ((), ("--follow",)):
            assert (await run_at(master, "logs", job, *follow)).out.removesuffix("\x1b[0m").splitlines() == [
                raw[0],
                "[trainer-0] 2026-01-01 10:00:00.000+00:00 ERROR a.b failed [rank=0]",
                "[trainer-0]     Traceback:",
                r"[trainer-0]       \x1b[2J",
                raw[2],
            ]
        assert (await run_at(master, "logs", job, "--no-prefix")).out.splitlines()[1:3] == [
            "2026-01-01 10:00:00.000+00:00 ERROR a.b failed [rank=0]",
            "    Traceback:",
        ]
        assert json.loads((await run_at(master, "logs", job, "--json")).out.removesuffix("\x1b[0m")) == raw


async def test_logs_of_the_newest_attempt_name_the_earlier_one(tmp_path: Path) -> None:
    async with on_master(tmp_path) as master:
        node, job, worker = await running(master)
        await node.ship(worker, "log", b"first\n")
        assert (await run_at(master, "logs", job)).err == ""
        await node.say(worker, WorkerState.FAILED, failure=failure())
        await master.until(job, "placed", also=lambda one: one["attempt"] == 2)
        note = "attempt 2 of 2; --attempt 1 shows the earlier one\n"
        assert (await run_at(master, "logs", job)).err == f"the workers have written nothing\n{note}"
        assert (await run_at(master, "logs", job, "--grep", "first")).err == f"no line matches\n{note}"
        assert (await run_at(master, "logs", job, "--json")).err == note
        earlier = await run_at(master, "logs", job, "--attempt", "1")
        assert (earlier.out, earlier.err) == ("[trainer-0] first\n", "")
        (worker,) = await node.workers()
        for state in (WorkerState.RUNNING, WorkerState.SUCCEEDED):
            await node.say(worker, state)
        await master.until(job, "succeeded")
        assert (await run_at(master, "logs", job, "--follow")).err == note
        assert (await run_at(master, "logs", job, "--follow", "--attempt", "2")).err == ""


async def test_logs_are_those_of_the_attempt_that_was_the_newest_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    log = Client.log
    monkeypatch.setattr(Client, "log", lambda client, job, query: asked.append(dict(query)) or log(client, job, query))
    async with on_master(tmp_path) as master:
        _, job, _ = await running(master)
        await run_at(master, "logs", job)
        assert asked == [{"attempt": 1}], "a second attempt can begin meanwhile"


def test_a_line_of_many_chunks_is_read_in_linear_time() -> None:
    chunks, began = [b"x" * 65_536] * 800, time.process_time()
    assert [len(line) for line in logs._lines([*chunks, b"y\nz\n", b"\xc3", b"\xa4"])] == [52_428_801, 1, 1]
    assert is_within(time.process_time() - began, 2), "each chunk must not copy the line before it"


def test_without_prefix_a_worker_can_t_show_one_of_another_worker() -> None:
    forged = "[trainer-0] [trainer-1] " + RECORD
    assert logs.readable(forged, prefix=False) == forged.removeprefix("[trainer-0] ")


def test_text_that_the_terminal_lacks_is_escaped() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    shown = subprocess.check_output([*ROLECALL, "sweep", "--help"], env=environment, text=True)
    assert r"higher (\u2191)" in " ".join(shown.split())


def test_the_gang_is_shown_with_what_was_asked_for_its_workers() -> None:
    counts = {Role.PARAMETER_SERVER: 2, Role.TRAINER: 1, Role.STAGE: 1, Role.OBSERVER: 1}
    resources = {
        Role.PARAMETER_SERVER: Resources(gpus=1, threads=4),
        Role.TRAINER: Resources(threads=1),
        Role.STAGE: Resources(busy=True),
        Role.OBSERVER: Resources(gpus=0),
    }
    document = JobDocument.model_construct(roles=counts, resources=resources)
    assert roles(document) == (
        "2 parameter-servers with a GPU and 4 threads, 1 trainer with 1 thread, 1 stage, 1 observer on the CPU"
    )


def test_a_long_value_continues_below_itself_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/a" * 40
    values = [("[bold]job[/]", "toy-1"), ("data.train", path), ("note", "[dim]one[/] two")]
    shown: dict[int, list[str]] = {}
    for columns in (40, _UNBOUNDED):
        sent = StringIO()
        monkeypatch.setattr(output, "out", Terminal(file=sent, highlight=False, soft_wrap=True, width=columns))
        output.print_values(values, indent=2)
        shown[columns] = [line.rstrip() for line in sent.getvalue().splitlines()]
    assert shown[_UNBOUNDED] == ["  job         toy-1", f"  data.train  {path}", "  note        one two"]
    assert max(map(len, shown[40])) == 40
    assert [line[:14].strip() for line in shown[40]] == ["job", "data.train", "", "", "", "note"]
    assert "".join(line[14:] for line in shown[40][1:-1]) == path


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("short words only", 5, ["short words only"]),
        ('["data/of/mine.txt", 1]', 19, ['["data/of/', 'mine.txt", 1]']),
        ('["data/of/mine.txt", 1]', 20, ['["data/of/mine.txt", 1]']),
        ('["/d", "abcdefgh"],', 10, ['["/d", "abcdefg', 'h"],']),
        ('"abcdefghi",', 10, ['"abcdefgh', 'i",']),
        ("/a/bcdefghijklmnop", 16, ["/a/bcdefghijklmn", "op"]),
        ("b" * 20, 8, ["b" * 8, "b" * 8, "b" * 4]),
        (",,,,,", 2, [",", ",", ",", ",,"]),
        ("narrow", 1, ["narrow"]),
        ("narrow", -3, ["narrow"]),
    ],
)
def test_a_long_word_breaks_after_a_slash_and_not_before_its_comma(
    text: str, columns: int, expected: list[str]
) -> None:
    places = word_breaks(text, columns)
    assert [text[begin:end] for begin, end in pairwise([0, *places, len(text)])] == expected


def test_a_list_of_paths_is_readable_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = StringIO()
    monkeypatch.setattr(output, "out", Terminal(file=sent, highlight=False, soft_wrap=True, width=40))
    output.print_values([("train", '["examples/data/austen/emma.txt", "examples/data/b.txt"]')], indent=2)
    assert [line.rstrip() for line in sent.getvalue().splitlines()] == [
        '  train  ["examples/data/austen/',
        '         emma.txt",',
        '         "examples/data/b.txt"]',
    ]


def test_the_greatest_loss_of_time_is_shown_first() -> None:
    lost = {"queue": 70.0, "start": 5.0, "checkpoint": 0.0, "repeated": 130.0, "finish": 6.0, "other": 4.0}
    document = JobDocument.model_construct(goodput=0.42, lost_s=lost)
    assert goodput(document) == (
        "42% (lost to repeated steps 2m10s, queue 1m10s, work after the last step 6s, start 5s, other work 4s)"
    )
    assert not goodput(JobDocument.model_construct(goodput=None, lost_s=None))


@pytest.mark.parametrize(
    ("workload", "metrics", "expected"),
    [
        ("embedding-ddp", {}, "step 9, loss 0.5000"),
        (
            "embedding-ddp",
            {"validation_loss": 0.4, "bad_rows": 1.0, "validation_auc": 0.9, "validation_accuracy": 0.8},
            "step 9, loss 0.5000, validation_auc 0.9000 (↑ is better), validation_accuracy 0.8000 (↑ is better)",
        ),
        ("rnn-lm", {"validation_perplexity": 120.0}, "step 9, loss 0.5000, validation_perplexity 120 (↓ is better)"),
        ("reinforce", {"kl": 0.1, "episode_return": 21.5}, "step 9, loss 0.5000, episode_return 21.50 (↑ is better)"),
    ],
)
def test_progress_has_the_main_scores(workload: str, metrics: dict[str, float], expected: str) -> None:
    declared = [MetricDocument.model_validate(one, from_attributes=True) for one in load(workload).metrics]
    assert progress(Progress(step=9, loss=0.5, metrics=metrics), declared) == expected


def test_a_job_without_a_gang_has_no_speed_and_no_remaining_time() -> None:
    paused = Progress(step=58, steps=5800, loss=0.5, samples_per_s=17_940, seconds_left=164)
    assert progress(paused, is_live=False) == "step 58/5800, loss 0.5000"


def test_the_rows_of_metrics_fit_into_a_narrow_terminal() -> None:
    points = [(float(step), 1 / step) for step in range(1, 100)]
    found = [("validation_accuracy", "trainer-0", points), ("samples_per_s", "trainer-0", points)]
    headings = ["METRIC", "WORKER", "CURVE", "STEP", "LAST"]
    for width, ends in ((55, []), (59, []), (60, ["MAX"]), (80, ["MIN", "MAX"]), (300, ["MIN", "MAX"])):
        heading, *rows = _lines(width, lambda terminal: metrics.metric_table(terminal, found))
        assert heading.split() == headings + ends
        assert [row.split()[0] for row in rows] == ["validation_accuracy", "samples_per_s"]
        assert len(rows[0].split()[2]) >= 8


def test_a_narrow_terminal_shows_the_state_and_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = [MetricDocument.model_validate(one, from_attributes=True) for one in load("embedding-ddp").metrics]
    scores = {"validation_auc": 0.9, "validation_accuracy": 0.8}
    newest = Progress(step=58, steps=5800, loss=0.5, epoch=1, samples_per_s=17_940, seconds_left=164, metrics=scores)
    document = JobDocument.model_construct(state=JobState.RUNNING, progress=newest, waiting_for=None)
    sent = StringIO()
    monkeypatch.setattr(follow, "err", Terminal(file=sent, force_terminal=True, color_system=None, width=80))
    with follow.view() as show:
        show(document, progress(newest, declared))
    assert "running" in sent.getvalue()
    assert "step 58/5800, epoch 1, loss 0.5000, 2m44s left" in sent.getvalue()


def test_an_id_stays_on_one_line_of_a_narrow_terminal() -> None:
    sent = StringIO()
    row = ("embedding-ddp-849f68de", "a name of a job", "a reason of many words that needs more than one line")
    terminal = Terminal(file=sent, width=60)
    terminal.print(make_table(("ID", "NAME", "PROGRESS"), [row], terminal))
    assert "embedding-ddp-849f68de" in sent.getvalue()
    assert max(map(len, sent.getvalue().splitlines())) < 80


@pytest.mark.parametrize(
    ("columns", "headings"),
    [
        (40, ["ID", "STATE", "AGE", "PROGRESS"]),
        (80, ["ID", "STATE", "AGE", "PROGRESS"]),
        (120, ["ID", "NAME", "STATE", "AGE", "PROGRESS"]),
        (150, ["ID", "NAME", "OWNER", "STATE", "AGE", "PROGRESS"]),
        (200, ["ID", "NAME", "OWNER", "WORKLOAD", "STATE", "AGE", "PROGRESS"]),
    ],
)
def test_the_list_of_jobs_fits_the_terminal(columns: int, headings: list[str]) -> None:
    newest: dict[str, Any] = {"roles": {}, "priority": 0, "started_at": None, "ended_at": None, "created_at": NOW}
    jobs = [
        JobOverview(
            id="transformer-pipeline-9e59f7cf",
            name="wikitext 103, 12 layers, warm restarts, third attempt",
            owner="alice@vision-research-group",
            workload="transformer-pipeline",
            state=JobState.RUNNING,
            reason=None,
            waiting_for=None,
            progress=Progress(step=12345, steps=580_000, epoch=3, loss=3.1415, samples_per_s=17_940, seconds_left=16e3),
            **newest,
        ),
        JobOverview(
            id="embedding-ddp-849f68de",
            name="adult",
            workload="embedding-ddp",
            state=JobState.QUEUED,
            reason=None,
            waiting_for="waiting for 4 trainer slots: 1 of 6 is free; 3 jobs with a higher priority go first",
            progress=Progress(),
            **newest,
        ),
    ]
    sent = StringIO()
    terminal = Terminal(file=sent, force_terminal=True, color_system=None, width=columns)
    terminal.print(job_table(terminal, jobs, lambda _: (), NOW))
    shown = sent.getvalue().splitlines()
    assert shown[0].split() == headings if columns > 40 else shown[0].startswith("ID")
    assert [line.split()[0] for line in shown[1:]] == [job.id for job in jobs]
    assert "  step 1" in shown[1] or columns == 40
    assert max(map(len, shown)) <= max(columns, 60)


def test_a_table_fits_a_terminal_and_ids_are_whole() -> None:
    headings, widths = ("ID", "SPEED", "REASON", "NOTE"), (20, 10, 50, 30)
    drop, shorten = ("SPEED", "NOTE"), {"REASON": 30, "NOTE": 10}
    found = {size: fitting(headings, widths, size, drop, shorten) for size in (116, 90, 70, 60, 40, 10)}
    assert found == {
        116: {0: 20, 1: 10, 2: 50, 3: 30},
        90: {0: 20, 1: 10, 2: 30, 3: 24},
        70: {0: 20, 2: 30, 3: 16},
        60: {0: 20, 2: 38},
        40: {0: 20, 2: 18},
        10: {0: 20, 2: 8},
    }


def test_what_is_no_terminal_gets_everything() -> None:
    row = ("a" * 300, "b" * 300)
    for width, whole in ((80, False), (_UNBOUNDED, True)):
        sent = StringIO()
        terminal = Terminal(file=sent, highlight=False, width=width)
        terminal.print(make_table(("NAME", "NOTE"), [row], terminal, drop=("NOTE",), shorten={"NAME": 10}))
        assert [word.rstrip() for word in sent.getvalue().split()][-1] == (row[1] if whole else "a" * 79 + "…")
        assert terminal.is_bounded != whole


def test_the_progress_in_the_list_of_a_terminal_is_brief() -> None:
    declared = [MetricDocument.model_validate(one, from_attributes=True) for one in load("rnn-lm").metrics]
    scores = {"validation_perplexity": 66.3, "validation_loss": 4.1948}
    newest = Progress(step=9, steps=90, loss=4.5, epoch=3, samples_per_s=17_940, seconds_left=4, metrics=scores)
    assert progress(newest, declared, room=40) == "step 9/90, val_loss 4.195 ↓, 4s left"
    assert progress(newest, declared, room=34) == "step 9/90, val_l… 4.195 ↓, 4s left", "the value is whole"
    newest = Progress(step=9, steps=90, loss=4.5, epoch=3, samples_per_s=17_940, seconds_left=4)
    assert progress(newest, declared, room=40) == "step 9/90, loss 4.500, 4s left"


@pytest.mark.parametrize(
    ("workload", "metrics", "shown"),
    [
        ("embedding-ddp", {"validation_auc": 0.9152}, "val_auc 0.9152 ↑"),
        ("rnn-lm", {"validation_loss": 5.23}, "val_loss 5.230 ↓"),
        ("transformer-pipeline", {"validation_loss": 5.23}, "val_loss 5.230 ↓"),
        ("resnet-pipeline", {"validation_accuracy": 0.9}, "val_accuracy 0.9000 ↑"),
        ("reinforce", {"evaluation_return": 475.25}, "eval_return 475.2 ↑"),
        ("reinforce", {"episode_return": 21.5}, "episode_return 21.50 ↑"),
    ],
)
@pytest.mark.parametrize("steps", [348, 580_000])
def test_80_columns_have_the_whole_id_the_state_the_step_and_the_score(
    workload: str, metrics: dict[str, float], shown: str, steps: int
) -> None:
    declared = [MetricDocument.model_validate(one, from_attributes=True) for one in load(workload).metrics]
    job = JobOverview(
        id=f"{workload}-9e59f7cf",
        name="a long name of the job",
        owner="alice",
        workload=workload,
        roles={},
        priority=0,
        state=JobState.SUCCEEDED,
        reason=None,
        waiting_for=None,
        created_at=NOW - timedelta(minutes=59, seconds=59),
        started_at=None,
        ended_at=None,
        progress=Progress(step=steps, steps=steps, loss=3.0, seconds_left=16e3, metrics=metrics),
    )
    longest = JobOverview.model_validate(job.model_dump() | {"id": "transformer-pipeline-9e59f7cf"})
    terminal = Terminal(file=StringIO(), force_terminal=True, color_system=None, width=80)
    tables = (
        job_table(terminal, [job], lambda _: declared, NOW),
        view(terminal, [], [job], lambda _: declared, NOW),
    )
    for table in tables:
        terminal.file = StringIO()
        terminal.print(table)
        (row,) = [line for line in terminal.file.getvalue().splitlines() if job.id in line]
        assert f"step {steps}/{steps}, {shown}" in row
        assert "  succeeded  " in row
        assert len(row) <= 80
    terminal.file = StringIO()
    terminal.print(job_table(terminal, [job, longest], lambda _: declared, NOW))
    for row in terminal.file.getvalue().splitlines()[1:]:
        assert row.endswith(shown[shown.index(" ") :])


@pytest.mark.parametrize(
    ("columns", "headings", "shown"),
    [
        (60, "JOB STATE PROGRESS", ("step 348, 2m44s left", "4 trainer slots: 1 …", "eval_return 475.2 ↑")),
        (
            80,
            "JOB STATE PROGRESS",
            (
                "step 348/5800, val_… 5.230 ↓, 2m44s left",
                "4 trainer slots: 1 of 6 is free; 3 jobs…",
                "step 348/5800, eval_return 475.2 ↑",
            ),
        ),
        (
            100,
            "JOB STATE AGE PROGRESS",
            (
                "step 348/5800, val_loss 5.230 ↓, 2m44s left",
                "4 trainer slots: 1 of 6 is free; 3 jobs with a high…",
                "step 348/5800, eval_return 475.2 ↑",
            ),
        ),
        (
            140,
            "JOB NAME STATE AGE PROGRESS",
            (
                "step 348/5800, val_loss 5.230 ↓, 2m44s left",
                "waiting for 4 trainer slots: 1 of 6 is free; 3 jobs with a higher prio…",
                "step 348/5800, eval_return 475.2 ↑",
            ),
        ),
    ],
)
def test_the_remaining_time_and_what_a_job_waits_for_are_more_important_than_its_age(
    columns: int, headings: str, shown: tuple[str, ...]
) -> None:
    jobs = [
        _job(
            "transformer-pipeline",
            JobState.RUNNING,
            progress=_progress(validation_loss=5.23),
            name="wikitext, 12 layers",
        ),
        _job(
            "resnet-pipeline",
            JobState.QUEUED,
            waiting_for="waiting for 4 trainer slots: 1 of 6 is free; 3 jobs with a higher priority go first",
        ),
        _job("reinforce", JobState.PAUSED, progress=_progress(evaluation_return=475.25)),
    ]
    heading, *rows = _lines(columns, lambda terminal: view(terminal, [], jobs, _metrics_of, NOW))[-4:]
    assert heading.split() == headings.split()
    begin = heading.index("PROGRESS")
    assert tuple(row[begin:].rstrip() for row in rows) == shown
    listed = _lines(columns, lambda terminal: job_table(terminal, jobs, _metrics_of, NOW))[-3:]
    assert columns == 140 or listed == rows, "only there, the list of jobs has another column, their owner"


def test_figures_without_room_are_left_out_instead_of_cut() -> None:
    running = _progress(step=12345, steps=580_000, seconds_left=16e3, validation_auc=0.9152)
    ended = running.model_copy(update={"seconds_left": None})
    found = {room: progress(running, _metrics_of("embedding-ddp"), room=room) for room in (47, 44, 43, 37, 36, 28, 21)}
    assert found == {
        47: "step 12345/580000, val_auc 0.9152 ↑, 4h26m left",
        44: "step 12345/580000, val… 0.9152 ↑, 4h26m left",
        43: "step 12345, val_auc 0.9152 ↑, 4h26m left",
        37: "step 12345, val… 0.9152 ↑, 4h26m left",
        36: "step 12345/580000, 4h26m left",
        28: "step 12345, 4h26m left",
        21: "4h26m left",
    }
    found = {room: progress(ended, _metrics_of("embedding-ddp"), room=room) for room in (35, 31, 24, 14)}
    assert found == {
        35: "step 12345/580000, val_auc 0.9152 ↑",
        31: "step 12345, val_auc 0.9152 ↑",
        24: "val_auc 0.9152 ↑",
        14: "val_… 0.9152 ↑",
    }
    assert progress(ended, room=15) == "loss 3.142"


def test_the_long_reason_of_a_failure_takes_no_columns_from_the_other_jobs() -> None:
    jobs = [
        _job("rnn-lm", JobState.FAILED, reason=f"trainer-0 on trainer-0: InputError: {'a' * 80}"),
        _job("rnn-lm", JobState.SUCCEEDED, name="lm"),
    ]
    heading, failed, _ = _lines(80, lambda terminal: job_table(terminal, jobs, _metrics_of, NOW))
    assert heading.split() == ["ID", "NAME", "OWNER", "STATE", "AGE", "PROGRESS"]
    assert "  InputError: aaa" in failed


def test_a_narrow_list_shows_the_error_of_a_failed_job_instead_of_its_worker() -> None:
    reason = "trainer-0 on trainer-0: ValueError: it is [7]"
    jobs = [_job("transformer-pipeline", JobState.FAILED, reason=reason)]
    shown = {
        columns: _lines(columns, lambda terminal: job_table(terminal, jobs, _metrics_of, NOW))[1]
        for columns in (60, 150)
    }
    assert shown[60].rstrip().endswith("  failed  ValueError: it is [7]")
    assert shown[150].rstrip().endswith(f"  {reason}")


def _job(workload: str, state: JobState, **values: Any) -> JobOverview:
    fields = {"owner": "alice", "roles": {}, "priority": 0, "created_at": NOW - timedelta(minutes=59, seconds=59)}
    empty = {"name": "", "reason": None, "waiting_for": None, "started_at": None, "ended_at": None}
    own = {"id": f"{workload}-9e59f7cf", "workload": workload, "state": state, "progress": Progress()}
    return JobOverview.model_validate(fields | empty | own | values)


def _progress(step: int = 348, steps: int = 5800, seconds_left: float | None = 164, **metrics: float) -> Progress:
    return Progress(step=step, steps=steps, loss=3.1415, seconds_left=seconds_left, metrics=metrics)


def _metrics_of(workload: str) -> list[MetricDocument]:
    return [MetricDocument.model_validate(one, from_attributes=True) for one in load(workload).metrics]


def _lines(columns: int, shown: Callable[[Terminal], RenderableType]) -> list[str]:
    """The output in a terminal."""
    sent = StringIO()
    terminal = Terminal(file=sent, force_terminal=True, color_system=None, width=columns)
    terminal.print(shown(terminal))
    return sent.getvalue().splitlines()


def test_a_pipe_gets_the_whole_reason_of_a_failure() -> None:
    job = JobOverview(
        id="toy-9e59f7cf",
        name="",
        owner="alice",
        workload="toy",
        roles={},
        priority=0,
        state=JobState.FAILED,
        reason="InputError: " + "\n".join(["a long path"] * 40),
        waiting_for=None,
        created_at=NOW,
        started_at=None,
        ended_at=None,
        progress=Progress(),
    )
    sent = StringIO()
    terminal = Terminal(file=sent, width=_UNBOUNDED)
    terminal.print(job_table(terminal, [job], lambda _: (), NOW))
    assert " ".join(["a long path"] * 40) in sent.getvalue()


def test_80_columns_have_who_did_what_to_which_job() -> None:
    job = "transformer-pipeline-9e59f7cf"
    actions = {
        "POST /jobs/{job}/cancel": ("POST …/cancel", job),
        "POST /jobs/{job}/pause": ("POST …/pause", job),
        "DELETE /jobs/{job}": ("DELETE {job}", job),
        "GET /jobs/{job}/artifacts/{name}": ("GET …/arti", f"{job}/checkpoints/model.zip"),
        "POST /jobs": ("POST /jobs", ""),
    }
    entries = [
        AuditEntry(
            id=58,
            at=NOW,
            token="ci-of-the-vision-group",
            address="192.168.100.100",
            action=action,
            target=target,
            outcome=200,
            count=1,
        )
        for action, (_, target) in actions.items()
    ]
    entries.append(entries[0].model_copy(update={"target": "x" * 3000, "outcome": 404}))
    shown: dict[int, list[str]] = {}
    for columns in (80, _UNBOUNDED):
        sent = StringIO()
        terminal = Terminal(file=sent, width=columns)
        terminal.print(audit_table(terminal, entries, NOW))
        shown[columns] = sent.getvalue().splitlines()
    assert shown[80][0].split() == [
        *time_heading("AT", Terminal(width=80)).split(),
        "TOKEN",
        "ACTION",
        "TARGET",
        "STATUS",
    ]
    assert max(map(len, shown[80])) <= 80
    for row, (action, target) in zip(shown[80][1:-1], actions.values(), strict=True):
        assert f"  {action}" in row
        assert target[: len(job)] in row or target != job
        assert row.rstrip().endswith("  200")
    for row, action in zip(shown[_UNBOUNDED][1:-1], actions, strict=True):
        assert f"  {action}  " in row
        assert "192.168.100.100" in row


@pytest.mark.parametrize("columns", [80, _UNBOUNDED])
def test_a_long_event_continues_below_itself_on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    sent = StringIO()
    monkeypatch.setattr(events, "out", Terminal(file=sent, highlight=False, soft_wrap=True, width=columns))
    at = datetime.now(UTC)
    message = "the checkpoint at step 411 is deleted: newer ones are kept (ROLECALL_KEEP_CHECKPOINTS=2)"
    events.print_event(Event(id=1, at=at, attempt=None, kind="retention", message=message))
    events.print_event(Event(id=2, at=at, attempt=1, kind="running", message="running"))
    lines = sent.getvalue().splitlines()
    assert lines[-1].endswith("running")
    lines = [line.rstrip() for line in lines]
    begin = lines[0].index("the checkpoint")
    assert " ".join(line[begin:] for line in lines[:-1]) == message
    assert {line[:begin].strip() for line in lines[1:-1]} == (set() if columns == _UNBOUNDED else {""})
    assert max(map(len, lines)) <= columns
    assert lines[-1].split()[2:] == ["attempt", "1", "running"], "the message repeats the kind"


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the time zone of the process until the end of the test."""

    def use(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield use
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "name", "local"),
    [
        ("UTC", "UTC", "2026-07-01 12:00:00"),
        ("XYZ-5:30", "UTC+05:30", "2026-07-01 17:30:00"),
        ("XYZ+3", "UTC-03:00", "2026-07-01 09:00:00"),
    ],
)
def test_a_terminal_names_the_time_zone_once_and_a_file_at_each_time(
    in_zone: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, zone: str, name: str, local: str
) -> None:
    in_zone(zone)
    offset = name.removeprefix("UTC") or "+00:00"
    entry = AuditEntry(id=58, at=NOW, token="a", address="::1", action="POST /jobs", target="", outcome=200, count=1)
    token = TokenDocument.model_construct(name="a", scopes=[], secrets=1, expires_at=NOW)
    shown: dict[int, str] = {}
    for columns in (80, _UNBOUNDED):
        sent = StringIO()
        terminal = Terminal(file=sent, highlight=False, soft_wrap=True, width=columns)
        for module in (events, tokens):
            monkeypatch.setattr(module, "out", terminal)
        events.print_heading()
        events.print_event(event(1, "running"))
        terminal.print(audit_table(terminal, [entry], NOW))
        terminal.print(tokens._row(token, NOW)[4])
        shown[columns] = sent.getvalue()
    heading, first, columns, row, expires = shown[80].splitlines()
    assert heading.split() == ["TIME", f"({name})", "ATTEMPT", "KIND", "MESSAGE"]
    assert [heading.index(one) for one in ("ATTEMPT", "KIND", "MESSAGE")] == [
        first.index(one) for one in ("attempt", "running", "event")
    ]
    assert first.startswith(f"{local} ")
    assert f"AT ({name})" in columns
    assert f" {local[5:]} " in f" {row}"
    assert expires == local[:-3]
    first, columns, row, expires = shown[_UNBOUNDED].splitlines()
    assert first.startswith(f"{local}{offset} ")
    assert columns.split()[:3] == ["ID", "AT", "TOKEN"]
    assert f" {local}{offset} " in row
    assert expires == f"{local}{offset}"


def test_all_times_have_the_offset_of_the_heading(in_zone: Callable[[str], None]) -> None:
    in_zone("CET-1CEST,M3.5.0,M10.5.0/3")
    terminal = Terminal(width=80)
    moments = [datetime(2026, month, 1, 12, tzinfo=UTC) for month in (1, 7)]
    hours = [output.local_time(one, terminal, "%H") for one in moments]
    assert hours in (["13", "13"], ["14", "14"])
    assert output.time_heading("AT", terminal) == f"AT (UTC+0{int(hours[0]) - 12}:00)"


def test_the_bar_shows_no_job_before_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = StringIO()
    monkeypatch.setattr(follow, "err", Terminal(file=sent, force_terminal=True, color_system=None, width=80))
    with follow.view():
        pass
    assert "━" not in sent.getvalue()


class Ending:
    """A client whose job ends between two calls: its events already say so, but not the document before them."""

    raw: Any = None

    def __init__(self, final: JobState) -> None:
        self._states = iter([JobState.RUNNING, JobState.STOPPING, final])
        self._events = [[event(1, "running")], [event(2, "stopping"), event(3, final)]]

    def job(self, _: str) -> JobDocument:
        newest = Progress(step=5, steps=5)
        return JobDocument.model_construct(
            state=next(self._states), progress=newest, workload="none", waiting_for=None, attempts=[]
        )

    def events(self, _: str, after: int) -> list[Event]:
        return [one for one in self._events[min(after, 1)] if one.id > after]

    def workload(self, name: str) -> None:
        raise UnknownName(name)


def event(number: int, kind: str) -> Event:
    return Event(id=number, at=NOW, attempt=1, kind=kind, message=f"event {kind}")


@pytest.mark.parametrize("final", list(follow.EXITS))
def test_no_bar_follows_the_event_that_the_job_has_ended(monkeypatch: pytest.MonkeyPatch, final: JobState) -> None:
    sent = StringIO()
    terminal = Terminal(file=sent, force_terminal=True, color_system="standard", width=80, _environ={})
    monkeypatch.setattr(follow, "err", terminal)
    client: Any = Ending(final)
    document, _ = follow.follow_to_end(client, "a")
    assert document.state is final
    before, _, after = sent.getvalue().partition(f"event {final}")
    assert "event stopping" in before
    assert "\x1b[32m━" in before, "a finished bar is green, also with 16 colors"
    assert "━" not in after


def test_an_attempt_that_failed_is_followed_by_the_next_one() -> None:
    client: Any = Ending(JobState.FAILED)
    client._states = iter([JobState.QUEUED, JobState.QUEUED])
    document, _, events = follow._news(client, "a", 1)
    assert (document.state, [one.kind for one in events]) == (JobState.QUEUED, ["stopping", "failed"])
