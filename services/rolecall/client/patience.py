"""Retries of calls while a master is unavailable, for example while it restarts."""

import time
from collections.abc import Callable
from typing import TypeVar

from rolecall.client.errors import Unreachable

RETRY_S = 120.0
"""Seconds since the master's last answer for which calls are retried."""
PAUSE_S = 0.3
_T = TypeVar("_T")


class Patience:
    """Limits the retries of calls to `RETRY_S` since the master's last answer. Tells `say` when they begin and end."""

    def __init__(
        self,
        say: Callable[[str], None] = lambda _: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._say = say
        self._clock = clock
        self._sleep = sleep
        self._unavailable_since: float | None = None

    def call(self, request: Callable[[], _T]) -> _T:
        """The result of `request`, which is retried while the master is unavailable."""
        while True:
            try:
                answer = request()
            except Unreachable as error:
                self.pause(error)
            else:
                self.reset()
                return answer

    def pause(self, error: Unreachable) -> None:
        """Wait before a retry. Raises `error` if the time is up."""
        if self._unavailable_since is None:
            self._unavailable_since = self._clock()
            self._say(f"the master does not answer; retrying for {RETRY_S:.0f} s")
        if self._clock() - self._unavailable_since > RETRY_S:
            raise error
        self._sleep(PAUSE_S)

    def reset(self) -> None:
        """Record that the master answers."""
        if self._unavailable_since is not None:
            self._say("the master answers again")
        self._unavailable_since = None
