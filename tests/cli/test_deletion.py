"""`rolecall delete` and `rolecall prune` against a real cluster."""

import json
import os
import pty
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from tests.conftest import ROLECALL, Cluster

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.options import parse_duration, parse_since

from .command import run_with as run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DATA = {"train": "none.csv", "label": "y", "categorical": ["a"]}
WAITING = {"workload": "embedding-ddp", "roles": {"trainer": 64}, "params": {"data": DATA}}


@pytest.mark.parametrize(
    ("text", "duration"),
    [("30d", timedelta(days=30)), ("12h", timedelta(hours=12)), ("1.5m", timedelta(seconds=90)), ("2w", timedelta(14))],
)
def test_durations(text: str, duration: timedelta) -> None:
    assert parse_duration(text, "--older-than") == duration


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y", "36526d", "999999d", "9999999999w", "99999999999d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="30d") as caught:
        parse_duration(text, "--older-than")
    assert caught.value.code is Exit.USAGE


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90m", NOW - timedelta(minutes=90)),
        ("2025-12-31T00:00:00Z", NOW - timedelta(days=1)),
        ("2026-01-01 01:00:00.000+02:00", NOW - timedelta(hours=1)),
    ],
)
def test_since_is_an_age_or_a_time(text: str, moment: datetime) -> None:
    assert parse_since(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "30", "2026-01-01", "2026-01-01T00:00:00", "0001-01-01T00:00:00+02:00", "1y"])
def test_what_is_neither_an_age_nor_a_time_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match=r"--since .* 30d, .* offset, such as 2026-01-31T18:00:00Z") as caught:
        parse_since(text, NOW)
    assert caught.value.code is Exit.USAGE


def test_jobs_are_deleted_and_pruned(cluster: Cluster) -> None:
    jobs = [run(cluster, "submit", "-", given=json.dumps(WAITING)).out.strip() for _ in range(3)]
    assert all(jobs)
    refused = run(cluster, "delete", jobs[0])
    assert refused.code == 5
    assert refused.err == (
        f"rolecall: job {jobs[0]} is queued and can't be deleted; cancel it first, or add --force (?force=true), which "
        "cancels it and deletes it when it has ended\n"
    )
    assert run(cluster, "delete", jobs[0], "--force").code == 0
    assert run(cluster, "show", jobs[0]).code == 4
    for job in jobs[1:]:
        run(cluster, "cancel", job)
    listed = run(cluster, "prune", "--older-than", "0s", "--state", "cancelled", "--dry-run")
    assert jobs[1] in listed.out
    assert jobs[2] in listed.out
    assert run(cluster, "prune", "--older-than", "0s", "--state", "cancelled", given="n\n").code == 1
    assert run(cluster, "show", jobs[1]).code == 0
    done = run(cluster, "prune", "--older-than", "0s", "--state", "cancelled", "--yes")
    assert done.code == 0, done.err
    assert "deleted" in done.out
    assert run(cluster, "show", jobs[1]).code == 4


def test_delete_asks_at_a_terminal(cluster: Cluster) -> None:
    job, other = [run(cluster, "submit", "-", given=json.dumps(WAITING)).out.strip() for _ in range(2)]
    declined = at_terminal(cluster, "n", "delete", job, "--force")
    assert f"and delete job {job} with its logs, checkpoints and artifacts? [y/N]" in declined.stderr
    assert (declined.returncode, declined.stderr.endswith("Nothing deleted.\n")) == (1, True)
    assert run(cluster, "show", job).code == 0
    agreed = at_terminal(cluster, "y", "delete", job, other, "--force", "--json")
    assert f"delete 2 jobs with their logs, checkpoints and artifacts: {job}, {other}? [y/N]" in agreed.stderr
    assert json.loads(agreed.stdout) == {"deleted": [job, other]}
    last = run(cluster, "submit", "-", given=json.dumps(WAITING)).out.strip()
    unasked = at_terminal(cluster, "n", "delete", last, "--force", "-y")
    assert (unasked.returncode, unasked.stdout) == (0, f"job {last} is deleted\n")


def test_delete_works_without_stdin(cluster: Cluster) -> None:
    job = run(cluster, "submit", "-", given=json.dumps(WAITING)).out.strip()
    command = ["bash", "-c", 'exec "$@" <&-', "bash", *ROLECALL, "delete", job, "--force"]
    done = subprocess.run(command, capture_output=True, text=True, env=cluster.environment, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"job {job} is deleted\n"), done.stderr


def at_terminal(cluster: Cluster, answer: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command of a user who types this answer."""
    keyboard, terminal = pty.openpty()
    os.write(keyboard, f"{answer}\n".encode())
    command = [*ROLECALL, *arguments]
    try:
        return subprocess.run(
            command, stdin=terminal, capture_output=True, text=True, env=cluster.environment, timeout=60, check=False
        )
    finally:
        os.close(keyboard)
        os.close(terminal)
