"""Errors about options that take one of several values."""

from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from rolecall.spec.similar import most_similar


class Commands(TyperGroup):
    """Commands whose errors about a wrong choice name the valid ones, and the most similar one."""

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
    # Only choices have values for the completion of a shell that don't depend on a cluster.
    valid = (
        [item.value for item in error.param.shell_complete(error.ctx, "")] if problem["type"] == "value_error" else []
    )
    if not valid:
        return error.message.removeprefix("Value error, ")
    near = most_similar(str(problem["input"]), valid)
    hint = f"did you mean {near!r}? " if near else ""
    return f"there is no {str(problem['input'])!r}; {hint}valid: {', '.join(valid)}"
