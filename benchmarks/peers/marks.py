"""Marks: lines in which workers say when a step ended. Torch-free."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

_LINE = re.compile(r"mark (\{.*\})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of an optimizer step of one worker."""

    rank: int
    pid: int
    step: int
    at: float
    """Seconds of the machine's clock."""
    loss: float

    def line(self) -> str:
        """The mark as a line of text, without its end."""
        return f"mark {json.dumps(asdict(self))}"


def parse(text: str) -> list[Mark]:
    """The marks in a log, in its order."""
    return [Mark(**json.loads(found)) for found in _LINE.findall(text)]


def to_file(path: Path) -> Callable[[str], None]:
    """Returns a function that appends a line to the file; all workers can write to the same one."""
    stream = path.open("a", buffering=1)
    return lambda line: print(line, file=stream)
