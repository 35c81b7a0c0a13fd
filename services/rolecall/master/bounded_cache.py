"""A cache for what depends on users' requests."""

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(dict[K, V]):
    """A dictionary that drops all entries when it has `most`, so that requests can't fill the memory."""

    def __init__(self, most: int = 16_384) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._most and key not in self:
            self.clear()
        super().__setitem__(key, value)

    def computed(self, key: K, compute: Callable[[], V]) -> V:
        """The value of `key`, which is computed unless it is cached."""
        if key not in self:
            self[key] = compute()
        return self[key]
