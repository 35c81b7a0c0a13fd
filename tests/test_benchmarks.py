"""The comparisons of `make bench`: rounds, figures and the report. The real ones take minutes."""

import importlib
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks import ddp_table, embedding_ddp, report
from benchmarks.__main__ import NAMES
from benchmarks.contest import Contender, Contest, Floor, Goal, Result, Run, hold
from benchmarks.ddp_table.trainer import make_step, make_whole
from benchmarks.goals import BubbleGoal, MemoryGoal, MemoryShareGoal, RateGoal
from benchmarks.processes import Step, alone, gang
from packaging.requirements import Requirement

from rolecall.spec.role import Role
from rolecall.testing import run_gang
from rolecall.workloads.embedding_ddp.build import open_dataset
from rolecall.workloads.embedding_ddp.params import Params

ROOT = Path(__file__).parents[1]
MACHINE: dict[str, str | float] = {
    "cpu": "a CPU",
    "cores": 2,
    "python": "3.11",
    "torch": "2",
    "rolecall": "1",
    "commit": "abc",
    "gflops_per_thread": 100.0,
    "copy_gb_per_s": 10.0,
    "packages": "numpy 2",
}


def of_rates(*rates: float) -> list[Run]:
    return [Run(rate=rate, step_ms=1e3 / rate, cpu_ms={"process": 1.0}) for rate in rates]


def test_every_round_runs_each_contender_once_in_an_order_that_turns(tmp_path: Path) -> None:
    order: list[str] = []

    def named(name: str) -> Callable[[Path], Run]:
        def run(folder: Path) -> Run:
            assert not list(folder.iterdir())
            order.append(name)
            return of_rates(1.0)[0]

        return run

    contest = Contest("x", "steps", "work", [Contender(name, named(name)) for name in "abc"], rounds=2)
    assert {name: len(runs) for name, runs in hold(contest).runs.items()} == {"a": 2, "b": 2, "c": 2}
    assert "".join(order) == "abcbca"


def test_a_ratio_is_that_of_runs_next_to_each_other() -> None:
    contest = Contest("x", "steps", "work", [], [RateGoal("mine", 0.9, "limit")])
    result = Result(contest, {"mine": of_rates(50, 100, 10), "limit": of_rates(50, 100, 20)})
    assert result.ratio("mine", "limit") == 1.0
    assert result.median("mine").rate == 50


def never(_folder: Path) -> Run:
    raise NotImplementedError


def test_the_report_has_every_figure_and_says_which_goals_are_missed(tmp_path: Path) -> None:
    contenders = [Contender("one process", never, is_limit=True), Contender("gang", never)]
    goals = [RateGoal("gang", factor, "one process") for factor in (0.5, 2)]
    contest = Contest("rnn-lm, small", "tokens", "work", contenders, goals)
    result = Result(contest, {"one process": of_rates(1000, 1200, 900), "gang": of_rates(900, 1200, 700)})
    report.write(tmp_path, MACHINE, [result])
    text = (tmp_path / "report.md").read_text()
    assert "| gang | 900 | 900, 1,200, 700 | 0.90 | 1.1 ms |" in text
    assert "| gang: at least 0.5 times the rate of one process | 0.90 | yes |" in text
    assert "| gang: at least 2 times the rate of one process | 0.90 | **no** |" in text
    (stored,) = json.loads((tmp_path / "report.json").read_text())["contests"]
    assert [run["rate"] for run in stored["runs"]["gang"]] == [900, 1200, 700]
    assert [(goal["measured"], goal["reached"]) for goal in stored["goals"]] == [(0.9, True), (0.9, False)]
    assert "one process" in (tmp_path / "rnn-lm--small.svg").read_text()


def test_the_report_compares_bubbles_with_theory_and_steps_with_the_floor(tmp_path: Path) -> None:
    seconds = {"stage-0": {"compute": 3.0, "wait": 1.0, "data": 0.0}}
    bubbles = {"bubble": 0.16, "bubble_theory": 0.11, "bubble_simulated": 0.13}
    runs = [replace(run, seconds=seconds, **bubbles) for run in of_rates(10, 11, 12)]
    floor = Floor(32, flops=2e9, bytes=2e8, derivation="matrix products")
    goals = [BubbleGoal("1F1B", points) for points in (4, 6)] + [BubbleGoal("1F1B", 4, "measured")]
    contest = Contest("x", "samples", "work", [], goals, floor=floor)
    contest = replace(contest, contenders=[Contender("1F1B", lambda _: runs[0])])
    text = "\n".join(report.markdown(MACHINE, [Result(contest, {"1F1B": runs})]))
    assert "| 1F1B | stage-0 compute 75%, wait 25% |" in text
    assert "| 1F1B | 16.0% | 13.0% | 11.0% |" in text
    assert "Floor of a step on 2 cores: 20.0 ms, 1,600 samples/s: 10.0 ms for 2.00 GFLOP" in text
    assert "| 1F1B: a bubble at most 4 points above theory for equal stages | +5.0 | **no** |" in text
    assert "| 1F1B: a bubble at most 6 points above theory for equal stages | +5.0 | yes |" in text
    assert "| 1F1B: a bubble at most 4 points above theory for measured stages | +3.0 | yes |" in text


def of_memory(*rounds: dict[str, int]) -> list[Run]:
    """Runs whose processes have this private memory in MiB, and twice as much that is anonymous, and three times as
    much in total."""
    return [
        Run(
            rate=1.0,
            step_ms=1e3,
            cpu_ms=dict.fromkeys(mebibytes, 1.0),
            peak_bytes={name: 3 * size << 20 for name, size in mebibytes.items()},
            anonymous_bytes={name: 2 * size << 20 for name, size in mebibytes.items()},
            private_bytes={name: size << 20 for name, size in mebibytes.items()},
        )
        for mebibytes in rounds
    ]


def test_memory_is_compared_with_goals_in_the_worst_round_and_process(tmp_path: Path) -> None:
    runs = {
        "one process": of_memory({"process": 1000}, {"process": 800}),
        "servers": of_memory(
            {"parameter-server-0": 90, "parameter-server-1": 110, "trainer-0": 500},
            {"parameter-server-0": 120, "parameter-server-1": 80, "trainer-0": 500},
        ),
        "1F1B": of_memory({"stage-0": 400, "stage-1": 100}, {"stage-0": 100, "stage-1": 480}),
    }
    goals: list[Goal] = [
        MemoryGoal("servers", Role.PARAMETER_SERVER, stored, "rows", 0.2) for stored in (100 << 20, 99 << 20)
    ]
    goals += [MemoryShareGoal("1F1B", Role.STAGE, share, "one process") for share in (0.6, 0.59)]
    contest = Contest("x", "samples", "work", [Contender(name, never) for name in runs], goals)
    report.write(tmp_path, MACHINE, [Result(contest, runs)])
    text = (tmp_path / "report.md").read_text()
    assert (
        "\n\n| goal | measured | reached |\n|---|---|---|\n"
        "| servers: a private memory of each parameter-server of at most 120 MiB, rows + 20% | 120 MiB | yes |\n"
        "| servers: a private memory of each parameter-server of at most 119 MiB, rows + 20% | 120 MiB | **no** |\n"
        "| 1F1B: a private memory of each stage of at most 0.6 times one process | 0.60 | yes |\n"
        "| 1F1B: a private memory of each stage of at most 0.59 times one process | 0.60 | **no** |\n"
    ) in text
    assert "| 1F1B | stage-0 1 ms, stage-1 1 ms | 0.00 cores busy | stage-0 1,200 (800, 400), stage-1 " in text
    (stored,) = json.loads((tmp_path / "report.json").read_text())["contests"]
    assert [goal["measured"] for goal in stored["goals"]] == [120 << 20, 120 << 20, 0.6, 0.6]
    assert [goal["reached"] for goal in stored["goals"]] == [True, False, True, False]


def _allocate(_folder: Path) -> Step:
    written = torch.ones(100 << 18)
    return lambda: time.sleep(0.1 * written[0].item())


@pytest.mark.slow
def test_private_memory_is_without_what_the_fork_server_has_imported(tmp_path: Path) -> None:
    run = alone(_allocate, 8, units_per_step=1.0)(tmp_path)
    private, anonymous = (sizes["process"] >> 20 for sizes in (run.private_bytes, run.anonymous_bytes))
    assert 100 <= private < 200
    assert anonymous - private > 100, "torch alone is larger"


def _prepare(_folder: Path) -> Step:
    def step() -> None:
        end = time.thread_time() + 0.03
        while time.thread_time() < end:
            pass
        time.sleep(0.03)

    return step


@pytest.mark.slow
def test_a_process_is_measured_from_outside(tmp_path: Path) -> None:
    run = alone(_prepare, 25, units_per_step=3.0, scale=2.0)(tmp_path)
    assert run.rate == pytest.approx(6e3 / run.step_ms)
    assert run.step_ms >= 60
    assert run.cpu_ms["process"] == pytest.approx(30, abs=6)
    assert run.peak_bytes["process"] > 2**27, "torch alone is larger"


@pytest.mark.slow
def test_a_gang_is_measured_in_its_steady_state(tmp_path: Path) -> None:
    params = {
        "text": {"synthetic": {"tokens": 3000, "vocabulary": 20}, "validation": 0.0},
        "embedding_dim": 8,
        "hidden_dim": 8,
        "batch_size": 4,
        "bptt": 5,
        "max_steps": 12,
        "sample": {"tokens": 1},
    }
    roles = {Role.PARAMETER_SERVER: 1, Role.TRAINER: 1}
    run = gang("rnn-lm", params, roles, reporter="trainer-0")(tmp_path)
    assert run.rate == pytest.approx(20e3 / run.step_ms)
    assert set(run.peak_bytes) == {"parameter-server-0", "trainer-0"}
    assert 0 < run.private_bytes["trainer-0"] < run.anonymous_bytes["trainer-0"] < run.peak_bytes["trainer-0"]
    assert run.seconds["trainer-0"]["compute"] > 0
    assert run.first_step_s > 0


@pytest.mark.slow
def test_ddp_alone_does_the_steps_of_one_process(tmp_path: Path) -> None:
    synthetic = {"rows": 64 * 6, "columns": 3, "ids": 50, "numbers": 2}
    given = embedding_ddp.params(
        data={"synthetic": synthetic, "validation": 0.0}, batch_size=64, embedding_dim=8, hidden=[8]
    )
    result = run_gang(ddp_table.WORKLOAD, given, {Role.TRAINER: 2}, tmp_path)
    params = Params.model_validate(given)
    dataset = open_dataset(params, tmp_path / "cache")
    model = make_whole(params, dataset)
    step = make_step(model, model)
    expected = [step(batch).item() for batch in dataset.train_batches(0, 0, 0, 1)]
    found = [sum(losses) / 2 for losses in zip(result.losses["trainer-0"], result.losses["trainer-1"], strict=True)]
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(found) == 6
    for name in ("trainer-0", "trainer-1"):
        assert result.seconds[name]["compute"] > 0
        assert result.seconds[name]["data"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_goals_of_a_benchmark_name_its_contenders(name: str) -> None:
    for contest in importlib.import_module(f"benchmarks.{name}").CONTESTS:
        names = {contender.name for contender in contest.contenders}
        assert len(names) == len(contest.contenders) > 0
        assert {goal.contender for goal in contest.goals} <= names
        compared = (goal for goal in contest.goals if isinstance(goal, RateGoal | MemoryShareGoal))
        assert {goal.other for goal in compared} <= names


def test_the_peers_are_installed_with_the_locked_versions(tmp_path: Path) -> None:
    """The lock has two versions of some packages, each for other versions of Python. pip finds no package for both."""
    steps = subprocess.run(["make", "--dry-run", "bench"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (make_constraints,) = [line for line in steps.splitlines() if line.endswith(" > build/constraints.txt")]
    command = make_constraints.replace("build/constraints.txt", str(tmp_path / "constraints.txt"))
    subprocess.run(command, shell=True, cwd=ROOT, check=True)  # noqa: S602 - the recipe, as make runs it
    lines = (
        line for line in (tmp_path / "constraints.txt").read_text().splitlines() if not line.lstrip().startswith("#")
    )
    wanted = [one for one in map(Requirement, filter(None, lines)) if one.marker is None or one.marker.evaluate()]
    names = [one.name for one in wanted]
    assert {"torch", "numpy", "gymnasium"} <= set(names)
    assert sorted(set(names)) == sorted(names)
