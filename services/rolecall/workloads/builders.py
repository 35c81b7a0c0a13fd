"""Models of the user's own: functions that a job names, in packages and folders that the operator allowed. Torch-free.

A builder is code that runs in the workers. So a job can't name just any function: its module must lie in a folder of
`ROLECALL_PLUGINS`, or below a package of `ROLECALL_BUILDERS`.
"""

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Annotated, Any

from pydantic import Field

from rolecall.settings import WorkerSettings, read_worker
from rolecall.spec import workload
from rolecall.spec.errors import InputError


class Builder(workload.Params):
    """A function that makes a model."""

    builder: Annotated[
        str, Field(max_length=1024, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", examples=["my_models:small"])
    ]
    """The function, as `module:function`, in a package or folder that the operator allowed."""
    arguments: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Further keyword arguments for the function."""


def check_builder(chosen: Builder) -> None:
    """Raises `InputError` unless the function may be named and is there. Imports the module that has it."""
    _find(chosen.builder)


def build(chosen: Builder, *given: Any) -> Any:
    """What the function makes of `given` and the job's own arguments.

    Raises `InputError` if it may not be named, is not there or refuses its arguments.
    """
    function = _find(chosen.builder)
    try:
        return function(*given, **chosen.arguments)
    except TypeError as error:
        raise InputError(f"{chosen.builder} can't be called with {chosen.arguments}: {error}") from error


def require_allowed(module: str) -> None:
    """Raises `InputError` unless jobs may name what `module` has; makes those of allowed folders importable."""
    _require_allowed(module, read_worker())


def _find(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    require_allowed(module)
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise InputError(f"the builder {name} can't be imported on this node: {error}") from error
    if not callable(found):
        raise InputError(f"the module {module} has no function {function!r}; name one as module:function")
    return found


def _require_allowed(module: str, settings: WorkerSettings) -> None:
    top = module.partition(".")[0]
    folders = [str(folder) for folder in settings.plugins]
    if PathFinder.find_spec(top, folders) is not None:
        sys.path[:0] = [folder for folder in folders if folder not in sys.path]
        return
    if not any(module == package or module.startswith(f"{package}.") for package in settings.builders):
        packages, places = ", ".join(settings.builders) or "none", ", ".join(folders) or "none"
        raise InputError(
            f"the operator has not allowed builders of {module}; allowed packages (ROLECALL_BUILDERS): {packages}; "
            f"folders (ROLECALL_PLUGINS): {places}"
        )
