"""The known name that someone meant who wrote another one."""

from collections.abc import Iterable
from difflib import get_close_matches


def most_similar(given: str, names: Iterable[str]) -> str | None:
    """The name that is most similar to `given` if case doesn't count, or None if none is similar."""
    known = {name.casefold(): name for name in names}
    near = get_close_matches(given.casefold(), known, n=1)
    return known[near[0]] if near else None
