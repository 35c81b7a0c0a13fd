"""Models of the user's own: functions that a job names, in packages and folders that the operator allowed. Torch-free.

A builder is code that runs in the workers. So a job can't name just any function: the module that defines it must lie
in a folder of `ROLECALL_PLUGINS`, or below a package of `ROLECALL_BUILDERS`. What such a module merely imports from
elsewhere is not allowed with it.
"""

import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Annotated, Any

from pydantic import Field

from rolecall.settings import WorkerSettings, read_worker
from rolecall.spec import workload
from rolecall.spec.errors import InputError
from rolecall.spec.report import shorten


class Builder(workload.Params):
    """A function that makes a model."""

    builder: Annotated[
        str, Field(max_length=1024, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", examples=["my_models:small"])
    ]
    """The function, as `module:function`, in a package or folder that the operator allowed."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further keyword arguments for the function."""


def check_builder(chosen: Builder) -> None:
    """Raises `InputError` unless the function may be named and is there. Imports the module that has it."""
    find_allowed(chosen.builder)


def in_short(words: str) -> str:
    """What an error of a job's own code says, without quoting all arguments: they may be a megabyte."""
    return shorten(words, 300)


def build(chosen: Builder, *given: Any) -> Any:
    """What the function makes of `given` and the job's own arguments.

    Raises `InputError` if it may not be named, is not there or refuses its arguments.
    """
    function = find_allowed(chosen.builder)
    try:
        return function(*given, **chosen.arguments)
    except TypeError as error:
        said = in_short(f"{chosen.arguments}: {error}")
        raise InputError(f"{chosen.builder} can't be called with {said}") from error


def find_allowed(name: str) -> type | FunctionType:
    """The class or function that `module:name` means. Nothing but the import of its module has run then.

    Raises `InputError` unless the operator allowed the module that is named and the one that defines what is found.
    """
    module, _, attribute = name.partition(":")
    imported = import_allowed(module)
    try:
        found = getattr(imported, attribute, None)
    except ImportError as error:  # of a module that imports its parts when they are asked for
        raise InputError(f"{name} can't be imported on this node: {in_short(str(error))}") from error
    if not isinstance(found, type | FunctionType):
        raise InputError(
            f"the module {module} has no function {attribute!r}, and no such class; name one that it defines"
        )
    settings = read_worker()
    if not _is_allowed(str(found.__module__), settings):
        raise _refused(f"{name}, because {found.__module__} defines it", settings)
    return found


def import_allowed(module: str) -> ModuleType:
    """The module; raises `InputError` unless the operator allowed it and it can be imported."""
    settings = read_worker()
    if not _may_import(module, settings):
        raise _refused(module, settings)
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        said = in_short(f"{type(error).__name__}: {error}")
        raise InputError(f"{module} can't be imported on this node: {said}") from error
    if not _is_allowed(module, settings):
        raise _refused(f"{module}, which comes from {getattr(imported, '__file__', 'Python itself')}", settings)
    return imported


def _may_import(module: str, settings: WorkerSettings) -> bool:
    """Whether the module's name is allowed; makes modules of allowed folders importable."""
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
    """Whether an imported module is of an allowed package or folder: another may have had the name of a plug-in's."""
    if _is_in_package(module, settings):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and any(Path(file).is_relative_to(folder.absolute()) for folder in settings.plugins)


def _is_in_package(module: str, settings: WorkerSettings) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in settings.builders)


def _refused(what: str, settings: WorkerSettings) -> InputError:
    packages, folders = ", ".join(settings.builders) or "none", ", ".join(map(str, settings.plugins)) or "none"
    return InputError(
        f"the operator has not allowed builders of {what}; allowed packages (ROLECALL_BUILDERS): {packages}; "
        f"folders (ROLECALL_PLUGINS): {folders}"
    )
