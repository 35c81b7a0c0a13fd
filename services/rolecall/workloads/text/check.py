"""What can be decided about a job's text before its gang meets. Torch-free."""

from rolecall.spec.errors import InputError
from rolecall.workloads.files import find
from rolecall.workloads.text.params import Text
from rolecall.workloads.text.reading import lines


def check_text(text: Text) -> None:
    """Raises `InputError` unless each split's files are there, begin as UTF-8 text and are not all empty."""
    for split, paths in text.sources.items():
        first_lines = [next(lines([file]), "") for file in find(paths)]
        if not any(first_lines):
            raise InputError(f"the {split} text is empty: {', '.join(paths)}")
