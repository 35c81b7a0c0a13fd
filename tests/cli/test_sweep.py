"""`rolecall sweep` and `rolecall submit --set` on a real cluster."""

import json
import signal
import subprocess
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.cluster.jobs import long_job, past_step, short_job
from tests.conftest import ROLECALL, Cluster

from rolecall.cli import output, sweep
from rolecall.cli.output import Terminal
from rolecall.cli.variants import Variant, chart, direction, variants
from rolecall.client import Client, Refused, Unauthorized, Unreachable
from rolecall.client.connection import Connection
from rolecall.spec.job import JobDocument, JobPlan

from .test_variants import DECLARED, measured
from .test_variants import run as ended

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def run(cluster: Cluster, job: dict[str, Any], *arguments: str, command: str = "sweep") -> tuple[int, str, str]:
    """The exit code and the output of the command."""
    done = subprocess.run(
        [*ROLECALL, command, "-", *arguments],
        input=json.dumps(job),
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def tiny_job(rows: Path, **params: Any) -> dict[str, Any]:
    return short_job(rows, trainers=1, epochs=1, **params)


def jobs(cluster: Cluster) -> int:
    return len(cluster.client.get("/jobs?limit=200").raise_for_status().json()["jobs"])


def test_a_failed_job_is_shown_with_its_reason_and_the_others_run(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    plot, nowhere = tmp_path / "plot.svg", tmp_path / "nowhere.csv"
    options = ("--set", f"params.data.train={nowhere},{rows}", "--metric", "validation_auc", "--plot", str(plot))
    code, table, errors = run(cluster, tiny_job(rows), *options, "--repeat", "2")
    assert code == 1, errors
    heading, failed, succeeded = table.splitlines()
    names = ["DATA.TRAIN", "STATE", "JOB", "SECONDS", "SAMPLES/S", "VALIDATION_AUC", "↑", "REASON"]
    assert heading.split() == names
    assert failed.split()[:3] == [str(nowhere), "2", "failed"]
    assert failed.split()[5:8] == ["-", "-", "-"]
    assert "(best)" not in table, "there is nothing to compare"
    assert failed.count(f"{nowhere} does not exist") == 2
    listed = cluster.client.get("/jobs?limit=4").raise_for_status().json()["jobs"]
    newest = [cluster.client.get(f"/jobs/{job['id']}").raise_for_status().json() for job in listed]
    assert [job["state"] for job in newest] == ["succeeded", "failed"] * 2, "the rounds alternate"
    aucs = [job["result"]["validation_auc"] for job in newest if job["state"] == "succeeded"]
    path, count, state, first, second, seconds, *_, auc, _, deviation = succeeded.split()
    assert (path, count, state) == (str(rows), "2", "succeeded")
    assert [first, second] == [f"{newest[2]['id']},", newest[0]["id"]]
    assert 0 < float(seconds) < 60
    assert float(auc) == pytest.approx(fmean(aucs), abs=1e-4)
    assert float(deviation) == pytest.approx(stdev(aucs), abs=1e-4)
    drawn = [one.text for one in ET.parse(plot).iter("{http://www.w3.org/2000/svg}text")]
    assert {"embedding-ddp", "validation auc", "data.train"} <= set(drawn)


def test_an_unknown_metric_ends_the_sweep_and_the_runs_so_far_are_printed(cluster: Cluster, rows: Path) -> None:
    before = jobs(cluster)
    code, document, errors = run(
        cluster, tiny_job(rows), "--set", "params.seed=1,2", "--metric", "test_accuracy", "--json"
    )
    assert code == 2
    assert "has no metric 'test_accuracy'; valid for --metric: " in errors
    assert "validation_auc" in errors
    (variant,) = json.loads(document)
    assert variant["values"] == {"params.seed": 1}
    assert variant["best"] is False, "there is nothing to compare"
    assert [one["state"] for one in variant["runs"]] == ["succeeded"]
    assert variant["runs"][0]["metrics"]["samples_per_s"] > 100
    assert jobs(cluster) == before + 1


def test_a_refused_combination_is_named_before_the_first_job(cluster: Cluster, rows: Path) -> None:
    before = jobs(cluster)
    code, table, errors = run(cluster, tiny_job(rows), "--set", "params.batch_size=64,-1")
    assert (code, table) == (5, ""), "there is no row"
    code, document, errors = run(cluster, tiny_job(rows), "--set", "params.batch_size=64,-1", "--json")
    assert (code, json.loads(document)) == (5, [])
    assert "batch_size=-1: the master refuses the request:\n  params.batch_size: " in errors
    assert jobs(cluster) == before


def test_what_can_be_known_before_the_first_job_is_refused_before_it(
    cluster: Cluster, rows: Path, tmp_path: Path
) -> None:
    before = jobs(cluster)
    code, table, errors = run(cluster, tiny_job(rows), "--set", "params.batch_sizes=64,32")
    assert (code, table) == (2, "")
    assert "did you mean 'batch_size'?" in errors
    code, table, errors = run(cluster, tiny_job(rows), "--set", "params.seed=1", "--metric", "validation_acu")
    assert (code, table) == (2, "")
    assert "did you mean 'validation_auc'?" in errors
    plot = tmp_path / "none/plot.svg"
    code, table, errors = run(cluster, tiny_job(rows), "--set", "params.seed=1", "--plot", str(plot))
    assert (code, table) == (2, "")
    assert f"can't write {plot}" in errors
    assert jobs(cluster) == before


def test_ctrl_c_cancels_the_running_job_and_prints_the_table(cluster: Cluster, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(long_job(rows, trainers=1)))
    command = [*ROLECALL, "sweep", str(tmp_path / "job.json"), "--set", "params.seed=1,2"]
    with subprocess.Popen(command, env=cluster.environment, stdout=-1, stderr=-1, text=True) as process:
        try:
            assert process.stderr
            first = next(line for line in process.stderr if line.startswith("[1/2] seed=1: job "))
            job = first.split()[-1]
            cluster.until(job, past_step(10))
            process.send_signal(signal.SIGINT)
            table, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert f"job {job} is being cancelled" in errors
    assert table.splitlines()[1].split()[:3] == ["1", "stopping", job]
    cluster.wait_for(job, "cancelled", 20)


@pytest.mark.parametrize(("metric", "winners"), [("test_loss", [False, True]), ("test_auc", [True, False])])
def test_the_best_value_is_marked_in_the_direction_that_the_workload_declares(
    metric: str, winners: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    done = measured(
        [("params.lr", (0.1, 0.2))], [ended(test_loss=0.5, test_auc=0.9)], [ended(test_loss=0.4, test_auc=0.8)]
    )
    better = direction(DECLARED, metric)
    sweep._print(done, metric, better, as_json=False)  # pyright: ignore[reportPrivateUsage]
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split()[-3:] == [metric.upper(), "↓" if better == "lower" else "↑", "REASON"]
    assert ["(best)" in row for row in rows] == winners
    assert [row.split()[:3] for row in rows] == [["0.1", "succeeded", "w-1"], ["0.2", "succeeded", "w-1"]]
    sweep._print(done, metric, better, as_json=True)  # pyright: ignore[reportPrivateUsage]
    assert [one["best"] for one in json.loads(capsys.readouterr().out)] == winners


def test_a_diverged_job_does_not_end_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = iter([ended(test_perplexity=None), ended(test_perplexity=4.0)])
    planned = variants({}, [("params.lr", (9, 0.1))])

    def submit(_: Client, variant: Variant) -> None:
        variant.runs.append(next(jobs))

    def follow(*_: object) -> JobDocument:
        return next(one.runs[-1] for one in reversed(planned) if one.runs)

    monkeypatch.setattr(sweep, "_submit", submit)
    monkeypatch.setattr(sweep, "_follow", follow)
    sweep._run_all(Client(Connection("http://127.0.0.1:9", "token")), planned, 1, "test_perplexity")  # pyright: ignore[reportPrivateUsage]
    assert [len(one.runs) for one in planned] == [1, 1]


def test_a_diverged_value_differs_from_a_missing_one(capsys: pytest.CaptureFixture[str]) -> None:
    results = [ended(test_loss=None)], [ended("failed")], [ended(test_loss=0.5)]
    done = measured([("params.lr", (9, 8, 0.1))], *results)
    sweep._print(done, "test_loss", "lower", as_json=False)  # pyright: ignore[reportPrivateUsage]
    _, diverged, failed, good = capsys.readouterr().out.splitlines()
    assert ["not finite" in row for row in (diverged, failed, good)] == [True, False, False]
    assert failed.split()[-1] == "-"


def test_the_plot_says_which_variants_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [("params.lr", (9, 8, 0.1))]
    done = measured(settings, [ended(test_loss=None)], [ended("failed")], [ended(test_loss=0.5)])
    sweep._plot(tmp_path / "plot.svg", chart(done, settings, "test_loss"), ["lr=9", "lr=8"])  # pyright: ignore[reportPrivateUsage]
    assert capsys.readouterr().err.splitlines()[-1] == "not in the plot: lr=9; lr=8"


def test_the_table_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = ended("failed").model_copy(update={"id": "rnn-lm-9e59f7cf", "reason": "it has a reason of many words"})
    good = [ended(test_loss=0.5, wall_s=12.3, samples_per_s=20_000.5) for _ in range(2)]
    settings = [("params.max_steps", (10,)), ("params.optimizer", ("a" * 50, "b" * 50))]
    done = measured(settings, [failed], good)
    for width in (80, 120):
        sent = StringIO()
        terminal = Terminal(file=sent, highlight=False, soft_wrap=True, width=width)
        for module in (output, sweep):
            monkeypatch.setattr(module, "out", terminal)
        sweep._print(done, "test_loss", "lower", as_json=False)  # pyright: ignore[reportPrivateUsage]
        heading, *rows = [line.rstrip() for line in sent.getvalue().splitlines()]
        assert max(map(len, (heading, *rows))) <= width
        assert "MAX_STEPS" not in heading, "all jobs have the same"
        assert [row.split()[0][-1] for row in rows[:2]] == ["…", "…"]
        assert "rnn-lm-9e59f7cf" in rows[0]
        assert ("REASON" in heading, "it has a reason" in rows[0]) == ((width == 120),) * 2
        assert [row.split()[3] for row in rows[1:2]] + [row.strip() for row in rows[2:]] == ["w-1", "w-1"]


class LosingAnswers(Client):
    """A client that does not get the answer to its first submission, and none to later questions about the job."""

    def __init__(self, lost: BaseException) -> None:
        super().__init__(Connection("http://127.0.0.1:9", "token"))
        self.lost, self.made, self.cancelled = lost, dict[str | None, JobDocument](), list[str]()

    def submit(self, request: Any, key: str | None = None) -> JobDocument:
        found = self.made.setdefault(key, ended("queued"))
        if isinstance(self.lost, KeyboardInterrupt):
            lost, self.lost = self.lost, Unreachable("gone")
            raise lost
        return found

    def job(self, job: str, *, timeout_s: float | None = None) -> JobDocument:
        raise self.lost

    def act(self, job: str, action: str) -> JobDocument:
        self.cancelled.append(job)
        return ended("stopping")


def test_ctrl_c_also_cancels_a_job_whose_submission_was_not_answered_yet() -> None:
    client, planned = LosingAnswers(KeyboardInterrupt()), variants({"workload": "w"}, [("name", ("a",))])
    with pytest.raises(KeyboardInterrupt):
        sweep._run_all(client, planned, 1, None)  # pyright: ignore[reportPrivateUsage]
    assert "is being cancelled" in str(sweep._cancel(client, planned))  # pyright: ignore[reportPrivateUsage]
    assert (len(client.made), client.cancelled) == (1, ["w-1"])


def test_a_job_that_can_no_longer_be_followed_is_named() -> None:
    client = LosingAnswers(Unauthorized("the token is not valid"))
    with pytest.raises(Unauthorized, match="job w-1 continues: the token is not valid"):
        sweep._run_all(client, variants({"workload": "w"}, [("name", ("a", "b"))]), 1, None)  # pyright: ignore[reportPrivateUsage]
    assert len(client.made) == 1


class Refusing(Client):
    """A client whose master has no free slot and refuses learning rates from 1 on."""

    def __init__(self) -> None:
        super().__init__(Connection("http://127.0.0.1:9", "token"))
        self.planned = list[Any]()

    def plan(self, request: Any) -> JobPlan:
        job = json.loads(request)
        self.planned.append(job)
        if job["params"]["lr"] >= 1:
            raise Refused(f"the master refuses the request:\n  params.lr: {job['params']['lr']} is too large")
        return JobPlan.model_construct(workers=(), waiting_for="no slot is free")


def test_all_refused_combinations_are_named() -> None:
    planned = variants({"workload": "w"}, [("params.lr", (0.1, 2, 3)), ("params.seed", (1, 2))])
    client = Refusing()
    with pytest.raises(Refused) as raised:
        sweep._check_all(client, planned)  # pyright: ignore[reportPrivateUsage]
    assert len(client.planned) == 6
    assert str(raised.value).splitlines() == [
        "lr=2, seed=1; lr=2, seed=2: the master refuses the request:",
        "  params.lr: 2 is too large",
        "lr=3, seed=1; lr=3, seed=2: the master refuses the request:",
        "  params.lr: 3 is too large",
    ]
    sweep._check_all(client, planned[:2])  # pyright: ignore[reportPrivateUsage]


def test_submit_replaces_fields(cluster: Cluster, rows: Path) -> None:
    # More trainers than the cluster has, so that the job stays in the queue.
    options = ("--set", "params.hidden=[4,2]", "--set", "roles.trainer=9", "--set", "name=mine", "--json")
    code, answer, errors = run(cluster, tiny_job(rows), *options, command="submit")
    assert code == 0, errors
    job = json.loads(answer)
    assert (job["params"]["hidden"], job["roles"]["trainer"], job["name"]) == ([4, 2], 9, "mine")
    code, _, errors = run(cluster, tiny_job(rows), "--set", "params.batch_size=1,2", command="submit")
    assert code == 2
    assert "`rolecall sweep` runs a job for each" in errors
