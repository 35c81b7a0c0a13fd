"""The comparisons of `make bench`: rounds, figures and the report. The real ones take minutes."""

import importlib
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import report
from benchmarks.__main__ import NAMES
from benchmarks.contest import Contender, Contest, Goal, Result, Run, hold
from benchmarks.processes import Step, alone, gang
from packaging.requirements import Requirement

from rolecall.spec.role import Role

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
    contest = Contest("x", "steps", "work", [], [Goal("mine", 0.9, "limit")])
    result = Result(contest, {"mine": of_rates(50, 100, 10), "limit": of_rates(50, 100, 20)})
    assert result.ratio("mine", "limit") == 1.0
    assert result.median("mine").rate == 50


def test_the_report_has_every_figure_and_says_which_goals_are_missed(tmp_path: Path) -> None:
    def never(_folder: Path) -> Run:
        raise NotImplementedError

    contenders = [Contender("one process", never, is_limit=True), Contender("gang", never)]
    contest = Contest("rnn-lm, small", "tokens", "work", contenders, [Goal("gang", f, "one process") for f in (0.5, 2)])
    result = Result(contest, {"one process": of_rates(1000, 1200, 900), "gang": of_rates(900, 1200, 700)})
    report.write(tmp_path, MACHINE, [result])
    text = (tmp_path / "report.md").read_text()
    assert "| gang | 900 | 900, 1,200, 700 | 0.90 | 1.1 ms |" in text
    assert "- gang is at least 0.5 times one process: met, 0.90" in text
    assert "- gang is at least 2 times one process: **not met**, 0.90" in text
    (stored,) = json.loads((tmp_path / "report.json").read_text())["contests"]
    assert [run["rate"] for run in stored["runs"]["gang"]] == [900, 1200, 700]
    assert "one process" in (tmp_path / "rnn-lm--small.svg").read_text()


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
    assert run.first_step_s > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_goals_of_a_benchmark_name_its_contenders(name: str) -> None:
    for contest in importlib.import_module(f"benchmarks.{name}").CONTESTS:
        names = {contender.name for contender in contest.contenders}
        assert len(names) == len(contest.contenders) > 0
        assert {name for goal in contest.goals for name in (goal.contender, goal.other)} <= names


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
