"""Access rules for input data: files in the operator's data roots, and URLs of allowed schemes. Torch-free.

The master checks a path as written, because it doesn't share the nodes' file system. A node checks the resolved path,
and checks the file again after opening it.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from rolecall.settings.private_paths import private_paths
from rolecall.settings.worker import WorkerSettings, read_worker
from rolecall.spec.errors import InputError
from rolecall.spec.visible import one_line
from rolecall.untrusted_files import NotRegular, open_regular

_SYSTEM = ("/proc", "/sys", "/dev", "/run")
_PLAIN = ("file", "local")  # fsspec's schemes for files of this machine


class DataPath(str):
    """A path, glob or URL that names a job's input. The type marks parameters that `DataAccess` checks."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _PathRules:
    """Readable (`open`) folders, and forbidden (`closed`, `private`) ones; absolute, with a trailing slash."""

    open: tuple[str, ...]
    closed: tuple[str, ...]
    private: tuple[str, ...]

    def allows(self, path: str) -> bool:
        """True if the deepest folder around the absolute, normalized `path` is open, and no private one contains it."""
        depth = 0 if _depth(path, self.private) else _depth(path, self.open)
        return depth > 0 and depth >= _depth(path, self.closed)


@dataclass(frozen=True, slots=True)
class DataAccess:
    """The operator's rules. `written` has the folders as in the settings, `real` with symbolic links resolved."""

    written: _PathRules
    real: _PathRules
    schemes: tuple[str, ...]

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """The rules of `settings`. System folders and `ROLECALL_DATA` are closed, except for roots in them.

        Private paths are always closed.
        """
        paths = settings.data_roots, (*map(Path, _SYSTEM), settings.data), private_paths()
        written = _PathRules(*(_folders(map(_normal, group)) for group in paths))
        real = _PathRules(*(_folders(map(os.path.realpath, group)) for group in paths))
        return cls(written, real, settings.data_schemes)

    def check_written(self, path: str) -> None:
        """Raises `InputError` for what no node can accept: bad syntax or scheme, or an absolute path elsewhere.

        Relative paths start at the node's working directory, so the node checks them.
        """
        plain = self.plain_path(path)
        if plain is not None and os.path.isabs(plain) and not self.written.allows(_normal(plain)):
            raise self._outside_error(path)

    @property
    def legal(self) -> str:
        """A description of the valid paths and URLs, for error messages."""
        urls = f", or a URL of {', '.join(self.schemes)}" if self.schemes else ""
        return f"a path below {self._roots}{urls}"

    def plain_path(self, path: str) -> str | None:
        """The local path for `path`; None for a URL of an allowed scheme.

        Raises `InputError` if `path` is neither.
        """
        if "\0" in path:
            raise InputError("a data path contains a NUL character; remove it")
        if "::" in path:
            raise InputError("a data path chains URLs with '::'; use a single path or URL")
        scheme, separator, rest = path.partition("://")
        if not separator and path.startswith("data:"):
            scheme, separator = "data", ":"
        if not separator or scheme in _PLAIN:
            plain = rest if separator else path
            if plain.startswith("~"):
                raise InputError(f"{one_line(path)} begins with '~', which is not expanded; write the full path")
            return plain
        if scheme not in self.schemes:
            raise InputError(
                f"jobs may not read {scheme}: URLs; schemes that the operator allows (ROLECALL_DATA_SCHEMES): "
                + (", ".join(self.schemes) or "none")
            )
        return None

    def resolve(self, path: str, *, given: str | None = None) -> str:
        """The real path of a local `path`, which need not exist; raises `InputError` unless it is in a data root.

        The error names `given`, if it is set, such as the pattern that matches a path that its user may not know.
        """
        try:
            real = os.path.realpath(path)
        except (OSError, ValueError) as error:
            raise InputError(f"{path!r} can't be resolved: {error}") from error
        if not self.real.allows(real):
            raise self._outside_error(given or path)
        return real

    def open(self, path: str) -> BinaryIO:
        """Open the file at a local `path`.

        Raises `InputError` if it is outside the data roots, even by a concurrently created link; `OSError` if it can't
        be read.
        """
        try:
            descriptor = open_regular(self.resolve(path))
        except NotRegular as error:
            raise InputError(f"{one_line(path)} is not a regular file") from error
        try:
            # A parent folder may have become a link since the path was resolved; /proc has the path actually opened.
            if not self.real.allows(os.readlink(f"/proc/self/fd/{descriptor}")):
                raise self._outside_error(path)
        except BaseException:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "rb")

    def _outside_error(self, path: str) -> InputError:
        start = start_of(path, "; relative paths are resolved against {}")
        return InputError(
            f"{one_line(path)} is outside the folders that jobs may read (ROLECALL_DATA_ROOTS): {self._roots}; put the "
            f"data there, or have the operator add its folder{start}"
        )

    @property
    def _roots(self) -> str:
        return ", ".join(folder.rstrip("/") or "/" for folder in self.written.open) or "none"


def start_of(path: str, text: str) -> str:
    """`text` with the folder of this node where a relative `path` starts; empty for absolute paths and URLs."""
    return "" if os.path.isabs(path) or "://" in path else text.format(os.getcwd())


def read_access() -> DataAccess:
    return DataAccess.of(read_worker())


def _normal(path: str | Path) -> str:
    """The absolute path without `.`, `..` and repeated slashes, of which `normpath` keeps two at the beginning."""
    return "/" + os.path.abspath(path).lstrip("/")


def _folders(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(path.rstrip("/") + "/" for path in paths)


def _depth(path: str, folders: Iterable[str]) -> int:
    """The length of the longest folder that contains `path`; 0 if there is none."""
    return max((len(folder) for folder in folders if f"{path}/".startswith(folder)), default=0)
