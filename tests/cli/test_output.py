"""Control characters in untrusted text never reach the terminal."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.markup import escape
from rich.table import Table
from tests.master.harness import ONE_TRAINER, on_master, one_trainer

from rolecall.cli import events, follow, metrics, output
from rolecall.cli.audit import audit_table
from rolecall.cli.jobs import job_table
from rolecall.cli.output import _UNBOUNDED, Terminal, fitting, goodput, make_table, progress, roles
from rolecall.cli.top import view
from rolecall.spec.access import AuditEntry
from rolecall.spec.api import Event, MetricDocument
from rolecall.spec.job import JobDocument, JobOverview, Progress
from rolecall.spec.resources import Resources
from rolecall.spec.role import Role
from rolecall.spec.state import JobState, WorkerState
from rolecall.workloads.catalogue import load

from .command import run_at

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
        node = await one_trainer(master)
        job = (await master.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await node.ship(worker, "log", f"{HOSTILE}\x1b[8mconcealed\n".encode())
        assert (await run_at(master, "logs", job)).out.endswith("\x1b[8mconcealed\n")
        monkeypatch.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda _: True)
        shown = (await run_at(master, "logs", job)).out
    assert r"\x1b]52;c;eA==\x07 \x1b[2J [red]" in shown
    assert shown.endswith("\x1b[8mconcealed\n\x1b[0m")


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
        "2 parameter-server with a GPU and 4 threads, 1 trainer with 1 thread, 1 stage, 1 observer on the CPU"
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
    for width in (80, 300):
        sent = StringIO()
        terminal = Terminal(file=sent, force_terminal=True, color_system=None, width=width)
        terminal.print(make_table(metrics.HEADINGS, metrics.curve_rows(found, width), terminal))
        assert len(sent.getvalue().splitlines()) == 3, sent.getvalue()


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
    newest = {"roles": {}, "priority": 0, "started_at": None, "ended_at": None, "created_at": datetime.now(UTC)}
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
    terminal.print(job_table(terminal, jobs, lambda _: ()))
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
    assert progress(newest, declared, room=25) == "step 9/90, val_l… 4.195 ↓, 4s left", "the value is whole"
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
        created_at=datetime.now(UTC) - timedelta(minutes=59, seconds=59),
        started_at=None,
        ended_at=None,
        progress=Progress(step=steps, steps=steps, loss=3.0, seconds_left=16e3, metrics=metrics),
    )
    longest = JobOverview.model_validate(job.model_dump() | {"id": "transformer-pipeline-9e59f7cf"})
    terminal = Terminal(file=StringIO(), force_terminal=True, color_system=None, width=80)
    for table in (job_table(terminal, [job], lambda _: declared), view(terminal, [], [job], lambda _: declared)):
        terminal.file = StringIO()
        terminal.print(table)
        (row,) = [line for line in terminal.file.getvalue().splitlines() if job.id in line]
        assert f"step {steps}/{steps}, {shown}" in row
        assert "  succeeded  " in row
        assert len(row) <= 80
    terminal.file = StringIO()
    terminal.print(job_table(terminal, [job, longest], lambda _: declared))
    for row in terminal.file.getvalue().splitlines()[1:]:
        assert row.endswith(shown[shown.index(" ") :])


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
        created_at=datetime.now(UTC),
        started_at=None,
        ended_at=None,
        progress=Progress(),
    )
    sent = StringIO()
    terminal = Terminal(file=sent, width=_UNBOUNDED)
    terminal.print(job_table(terminal, [job], lambda _: ()))
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
            at=datetime.now(UTC),
            token="ci-of-the-vision-group",
            address="192.168.100.100",
            action=action,
            target=target,
            outcome=200,
            count=1,
        )
        for action, (_, target) in actions.items()
    ]
    shown: dict[int, list[str]] = {}
    for columns in (80, _UNBOUNDED):
        sent = StringIO()
        terminal = Terminal(file=sent, width=columns)
        terminal.print(audit_table(terminal, entries))
        shown[columns] = sent.getvalue().splitlines()
    assert shown[80][0].split() == ["AT", "TOKEN", "ACTION", "TARGET", "STATUS"]
    assert max(map(len, shown[80])) <= 80
    for row, (action, target) in zip(shown[80][1:], actions.values(), strict=True):
        assert f"  {action}" in row
        assert target[: len(job)] in row or target != job
        assert row.rstrip().endswith("  200")
    for row, action in zip(shown[_UNBOUNDED][1:], actions, strict=True):
        assert f"  {action}  " in row
        assert "192.168.100.100" in row


@pytest.mark.parametrize("columns", [80, _UNBOUNDED])
def test_a_long_event_continues_below_itself_on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    sent = StringIO()
    monkeypatch.setattr(events, "out", Terminal(file=sent, highlight=False, soft_wrap=True, width=columns))
    at = datetime.now(UTC)
    message = "the checkpoint at step 411 is deleted: newer ones are kept (ROLECALL_KEEP_CHECKPOINTS=2)"
    events.print_event(Event(id=1, at=at, attempt=None, kind="retention", message=message), "(and 1 before)")
    events.print_event(Event(id=2, at=at, attempt=1, kind="running", message="running"))
    lines = sent.getvalue().splitlines()
    assert lines[-1].endswith("running")
    lines = [line.rstrip() for line in lines]
    begin = lines[0].index("the checkpoint")
    assert " ".join(line[begin:] for line in lines[:-1]) == f"{message} (and 1 before)"
    assert {line[:begin].strip() for line in lines[1:-1]} == (set() if columns == _UNBOUNDED else {""})
    assert max(map(len, lines)) <= columns
    assert lines[-1].split()[2:] == ["attempt", "1", "running"], "the message repeats the kind"


def test_the_bar_shows_no_job_before_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = StringIO()
    monkeypatch.setattr(follow, "err", Terminal(file=sent, force_terminal=True, color_system=None, width=80))
    with follow.view():
        pass
    assert "━" not in sent.getvalue()
