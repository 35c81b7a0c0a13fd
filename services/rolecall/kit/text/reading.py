"""The lines of a job's text, streamed. Torch-free."""

import zlib
from collections.abc import Iterable, Iterator
from io import TextIOWrapper

from rolecall.kit.files import File, find
from rolecall.kit.text.params import Text
from rolecall.spec.errors import InputError
from rolecall.spec.visible import one_line

_MAX_LINE = 65_536


def lines(files: Iterable[File]) -> Iterator[str]:
    """The files' lines in order, with line ends; a line of more than 65,536 characters is split.

    Raises `InputError` for a file that is not UTF-8 text or can't be decompressed.
    """
    for file in files:
        try:
            with TextIOWrapper(file.open(), encoding="utf-8") as text:
                while line := text.readline(_MAX_LINE):
                    yield line
        except UnicodeDecodeError as error:
            raise InputError(f"{file.name} is not UTF-8 text ({error.reason}); convert it to UTF-8") from error
        except (EOFError, OSError, zlib.error) as error:
            raise InputError(f"{file.name} can't be read: {error}") from error


def slice_lines(lines: Iterable[str], start: int, end: int | None) -> Iterator[str]:
    """The lines that start in characters [start, end)."""
    position = 0
    for line in lines:
        if end is not None and position >= end:
            return
        if position >= start:
            yield line
        position += len(line)


def check_text(text: Text) -> None:
    """Raises `InputError` unless each split's files exist, start with UTF-8 text and are not all empty."""
    for split, paths in text.sources.items():
        first_lines = [next(lines([file]), "") for file in find(paths)]
        if not any(first_lines):
            raise InputError(f"the {split} text is empty: {one_line(', '.join(paths))}")
