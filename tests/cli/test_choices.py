"""Errors about options that take one of several values."""

import pytest

from .command import run


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("jobs --state faild", "'--state': there is no 'faild'; did you mean 'failed'? valid: queued, placed, "),
        ("jobs --state x", "'--state': there is no 'x'; valid: queued, "),
        ("timeline job --format svgg", "'--format': there is no 'svgg'; did you mean 'svg'? valid: trace, svg, json,"),
        ("tokens create me --scope submt", "'--scope': there is no 'submt'; did you mean 'submit'? valid: read, "),
        ("jobs --limit x", "'--limit': Input should be a valid integer"),
    ],
)
def test_a_wrong_choice_is_named_with_the_valid_ones_and_the_nearest(command: str, said: str) -> None:
    done = run(*command.split(), COLUMNS="200")
    assert done.code == 2
    assert said in done.err
