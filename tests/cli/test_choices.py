"""Errors about the values of options."""

import pytest
from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from rolecall.cli.app import app

from .command import run


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("jobs --state faild", "'--state': there is no 'faild'; did you mean 'failed'? valid: queued, placed, "),
        ("jobs --state x", "'--state': there is no 'x'; valid: queued, "),
        ("timeline job --format svgg", "'--format': there is no 'svgg'; did you mean 'svg'? valid: trace, svg, json,"),
        ("tokens create me --scope submt", "'--scope': there is no 'submt'; did you mean 'submit'? valid: read, "),
        ("jobs --limit x", "'--limit': 'x' is not a whole number; valid: 1 to 200"),
        ("logs job --tail 1.5", "'--tail': '1.5' is not a whole number; valid: 0 to 10000"),
        ("logs job --tail 10001", "'--tail': '10001' is out of range; valid: 0 to 10000"),
        ("logs job --rank -1", "'--rank': '-1' is out of range; valid: 0 or more"),
        ("logs job --since nonsense", "--since nonsense: write a number and a unit, such as 30d,"),
        ("logs job --since 2026-01-31", "100 years, or a time with an offset, such as 2026-01-31T18:00:00Z"),
        ("audit --since 2026-01-31T18:00:00", "100 years, or a time with an offset, such as 2026-01-31T18:00:00Z"),
        ("top --interval soon", "'--interval': 'soon' is not a number; valid: 0.5 to 3600"),
        ("update job --priority 101", "'--priority': '101' is out of range; valid: -100 to 100"),
    ],
)
def test_a_wrong_value_is_named_with_the_valid_ones_and_the_nearest_choice(command: str, said: str) -> None:
    done = run(*command.split(), COLUMNS="200")
    assert done.code == 2
    assert said in done.err


def test_no_number_of_any_option_is_refused_in_the_words_of_a_library() -> None:
    app_of = get_command(app)
    assert isinstance(app_of, TyperGroup)
    numbers = [
        (name, param.opts[0])
        for name, command in app_of.commands.items()
        for param in command.params
        if isinstance(param, TyperOption) and param.type_descriptor.annotation in {int, float}
    ]
    assert len(numbers) > 20
    for name, option in numbers:
        done = run(name, option, "x", "job", COLUMNS="200")
        assert done.code == 2
        assert f"'{option}': 'x' is not a" in done.err
