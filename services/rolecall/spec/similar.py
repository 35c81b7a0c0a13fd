"""The known name that someone meant who wrote another one."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_MIN_PREFIX = 3
"""The length from which a beginning of a name counts as an abbreviation. Shorter ones fit by chance."""
_BETWEEN_WORDS = re.compile(r"[\W_]+")


def most_similar(given: str, names: Iterable[str]) -> str | None:
    """The name that is most similar to `given` if case doesn't count, or None if none is similar.

    Names that are written almost alike come first. Otherwise, it is the only name that abbreviates `given`, or that
    `given` abbreviates: by the initials of its words, as in `lr`, or by its beginning.
    """
    known, wanted = {name.casefold(): name for name in names}, given.casefold()
    if near := get_close_matches(wanted, known, n=1):
        return known[near[0]]
    for abbreviates in (_are_initials, _is_beginning):
        found = [name for name in known if abbreviates(name, wanted) or abbreviates(wanted, name)]
        if len(found) == 1:
            return known[found[0]]
    return None


def _are_initials(short: str, long: str) -> bool:
    initials = [word[0] for word in _BETWEEN_WORDS.split(long) if word]
    return len(initials) > 1 and short == "".join(initials)


def _is_beginning(short: str, long: str) -> bool:
    return len(short) >= _MIN_PREFIX and long.startswith(short)
