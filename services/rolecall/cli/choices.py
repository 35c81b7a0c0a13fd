"""Errors about the values of options: choices and numbers."""

from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from rolecall.spec.similar import most_similar

_WRONG_NUMBERS = {
    "int": "not a whole number",
    "float": "not a number",
    "greater": "out of range",
    "less": "out of range",
}
"""The problem of a number, by the first word of pydantic's type of error."""


class Commands(TyperGroup):
    """Commands whose errors about a wrong value name the valid ones.

    An error about a choice also names the most similar one.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _explain(error)
            raise


def _explain(error: typer.BadParameter) -> str:
    cause = error.__cause__
    if not isinstance(cause, ValidationError) or error.param is None or error.ctx is None:
        return error.message
    problem = cause.errors()[0]
    given = repr(str(problem["input"]))
    if wrong := _WRONG_NUMBERS.get(problem["type"].partition("_")[0]):
        return f"{given} is {wrong}{_range(error.param)}"
    # Only choices have values for the completion of a shell that don't depend on a cluster.
    valid = (
        [item.value for item in error.param.shell_complete(error.ctx, "")] if problem["type"] == "value_error" else []
    )
    if not valid:
        return error.message.removeprefix("Value error, ")
    near = most_similar(str(problem["input"]), valid)
    hint = f"did you mean {near!r}? " if near else ""
    return f"there is no {given}; {hint}valid: {', '.join(valid)}"


def _range(param: Any) -> str:
    """The valid numbers of an option, as the end of a message; empty if all are valid."""
    least, most = getattr(param, "min", None), getattr(param, "max", None)
    if least is None and most is None:
        return ""
    if most is None:
        return f"; valid: {least} or more"
    return f"; valid: up to {most}" if least is None else f"; valid: {least} to {most}"
