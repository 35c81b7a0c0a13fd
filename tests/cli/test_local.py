"""What `rolecall local` says until its nodes have registered."""

from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest

from rolecall.cli import local
from rolecall.cli.output import Terminal
from rolecall.client import Connection
from rolecall.supervisor import Ended, SupervisedProgram, Supervisor


class Starting:
    """A supervisor whose programs start, one after another."""

    should_exit = False

    def wait(self, timeout_s: float | None = None) -> list[Ended]:
        return []


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_nodes_that_have_registered_are_counted_until_all_have(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    answers: list[Any] = [None, set(), {"b"}, None, {"a"}]
    said = StringIO()
    monkeypatch.setattr(local, "_live_nodes", lambda _: answers.pop(0))
    monkeypatch.setattr(local, "err", Terminal(file=said, force_terminal=is_terminal, color_system=None, width=80))
    monkeypatch.setattr(local, "_LINE_EVERY_S", 0.0)
    programs = [SupervisedProgram(name, (), {}, Path("log")) for name in ("master", "a", "b")]
    local._wait_until_ready(  # pyright: ignore[reportPrivateUsage]
        cast(Supervisor, Starting()), Connection("http://127.0.0.1:9", "token"), programs
    )
    expected = [
        "0 s: the master is starting",
        "0 s: 0 of 2 nodes are registered; waiting for a, b",
        "0 s: 1 of 2 nodes are registered; waiting for a",
        "0 s: 1 of 2 nodes are registered; waiting for a",
        "0 s: 2 of 2 nodes are registered",
    ]
    if is_terminal:
        assert all(line in said.getvalue() for line in expected)
        assert said.getvalue().count("\n") == 1, "one line, which is replaced"
    else:
        assert said.getvalue().splitlines() == expected


def test_a_log_gets_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    said = StringIO()
    monkeypatch.setattr(local, "err", Terminal(file=said))
    with local._progress() as show:  # pyright: ignore[reportPrivateUsage]
        for count in range(100):
            show(f"{count} of 100")
    assert said.getvalue() == ""
