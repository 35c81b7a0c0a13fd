"""Custom models: functions that a job names, in packages and folders that the operator allows. Torch-free.

A builder is code that runs in the workers, so a job can't name an arbitrary function: the module that defines it must
be in a folder of `ROLECALL_PLUGINS`, or in a package of `ROLECALL_BUILDERS`. Names that such a module imports from
elsewhere are not allowed with it.
"""

import importlib
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Annotated, Any

from pydantic import Field

from rolecall.settings.worker import WorkerSettings, read_worker
from rolecall.spec import workload
from rolecall.spec.bounds import matching
from rolecall.spec.errors import InputError
from rolecall.spec.redaction import redact, redact_text
from rolecall.spec.report import shorten


class Builder(workload.Params):
    """A function that returns a model."""

    builder: Annotated[
        str,
        Field(max_length=1024, examples=["my_models:small"]),
        matching(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", "a function as module:function"),
    ]
    """The function, as `module:function`, in a package or folder that the operator allowed."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further keyword arguments for the function."""


def check_builder(chosen: Builder) -> None:
    """Imports the function's module; raises `InputError` unless the function exists and is allowed."""
    find_allowed(chosen.builder)


def shorten_error(message: str) -> str:
    """The message of an error in custom code, redacted and shortened, because it may quote large arguments."""
    return shorten(redact_text(message), 300)


@contextmanager
def explain_errors(explanation: str, advice: str = "") -> Generator[None]:
    """Turns errors of custom code into an `InputError`: `explanation`, the error's first line, and `advice`.

    Errors that another attempt may not have, such as those of memory, files and networks, stay as they are.
    """
    try:
        yield
    except (InputError, MemoryError, OSError):
        raise
    except Exception as error:  # custom code may raise anything
        kind = type(error).__name__
        if kind == "OutOfMemoryError":  # torch's, by its name because this module is torch-free
            raise
        reason = shorten_error(f"{kind}: {error}").splitlines()[0]
        raise InputError(f"{explanation}: {reason}" + (f"; {advice}" if advice else "")) from error


def build(chosen: Builder, *given: Any) -> Any:
    """Calls the function with `given` and the job's arguments.

    Raises `InputError` if it is not allowed, does not exist, rejects its arguments or fails, as `explain_errors` does.
    """
    function = find_allowed(chosen.builder)
    with explain_errors(f"{chosen.builder} fails"):
        try:
            return function(*given, **chosen.arguments)
        except TypeError as error:
            reason = shorten_error(f"{redact(chosen.arguments)}: {error}")
            raise InputError(f"{chosen.builder} can't be called with {reason}") from error


def find_allowed(name: str) -> type | FunctionType:
    """The class or function `module:name`. Imports the module and runs nothing else.

    Raises `InputError` unless the operator allows both the named module and the one that defines the object.
    """
    module, _, attribute = name.partition(":")
    imported = import_allowed(module)
    try:
        found = getattr(imported, attribute, None)
    except ImportError as error:  # from a module that imports its members lazily
        raise InputError(f"{name} can't be imported on this node: {shorten_error(str(error))}") from error
    if not isinstance(found, type | FunctionType):
        raise InputError(f"the module {module} has no function or class {attribute!r}; name one that it defines")
    settings = read_worker()
    if not _is_allowed(str(found.__module__), settings):
        raise _refused(f"{name}, which {found.__module__} defines", settings)
    return found


def import_allowed(module: str) -> ModuleType:
    """The imported module; raises `InputError` unless the operator allows it and the import succeeds."""
    settings = read_worker()
    if not _may_import(module, settings):
        raise _refused(module, settings)
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # custom code may raise anything
        reason = shorten_error(f"{type(error).__name__}: {error}")
        raise InputError(f"{module} can't be imported on this node: {reason}") from error
    if not _is_allowed(module, settings):
        raise _refused(f"{module}, which comes from {getattr(imported, '__file__', 'Python itself')}", settings)
    return imported


def _may_import(module: str, settings: WorkerSettings) -> bool:
    """True if the module's name is allowed. Adds the allowed folders to `sys.path` if one of them has the module."""
    top, *inner = module.split(".")
    # A package's `__main__` is a command, which runs when it is imported.
    if "__main__" in inner or not all(part.isidentifier() for part in (top, *inner)):
        return False
    folders = [str(folder) for folder in settings.plugins]
    if PathFinder.find_spec(top, folders) is not None:
        sys.path[:0] = [folder for folder in folders if folder not in sys.path]
        return True
    return _is_in_package(module, settings)


def _is_allowed(module: str, settings: WorkerSettings) -> bool:
    """True if an imported module is in an allowed package or folder; an installed module may shadow a plug-in."""
    if _is_in_package(module, settings):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and any(Path(file).is_relative_to(folder.absolute()) for folder in settings.plugins)


def _is_in_package(module: str, settings: WorkerSettings) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in settings.builders)


def _refused(what: str, settings: WorkerSettings) -> InputError:
    packages, folders = ", ".join(settings.builders) or "none", ", ".join(map(str, settings.plugins)) or "none"
    return InputError(
        f"the operator has not allowed {what}; allowed packages (ROLECALL_BUILDERS): {packages}; "
        f"folders (ROLECALL_PLUGINS): {folders}"
    )
