"""A cache for what depends on users' requests."""

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

    def setdefault(self, key: K, default: V) -> V:  # pyright: ignore[reportIncompatibleMethodOverride] - not optional
        if key not in self:
            self[key] = default
        return self[key]
