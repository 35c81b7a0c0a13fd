"""Who is to look again after a commit: the view, the loops, the nodes of the gang, and those who follow the job.

Whoever changes what is stored calls one of these afterwards. Nobody else is woken: a change costs as much as its gang
is wide.
"""

from collections.abc import Callable, Iterable

from rolecall.master.answers import Answers
from rolecall.master.signals import Signals
from rolecall.master.view import View


class Waking:
    """The ways to wake."""

    def __init__(self, view: View, answers: Answers, news: Signals) -> None:
        self._view = view
        self._answers = answers
        self._news = news
        self._loops: list[Callable[[], None]] = []

    def add(self, wake: Callable[[], None]) -> None:
        """A loop that is to pass when something changed."""
        self._loops.append(wake)

    def jobs(self, *jobs: str) -> None:
        """These jobs changed, but not what any node should run."""
        self._view.note(jobs=jobs)
        self._news.notify(*jobs)
        self.loops()

    def gang(self, job: str, nodes: Iterable[str]) -> None:
        """The job changed, and with it what these nodes should run."""
        self._answers.notify(*nodes)
        self.jobs(job)

    def nodes(self, *nodes: str) -> None:
        """These nodes came, left, or offer something else than before."""
        self._view.note(nodes=nodes)
        self._answers.notify(*nodes)
        self.loops()

    def followers(self, *jobs: str) -> None:
        """There is more to read of these jobs."""
        self._news.notify(*jobs)

    def loops(self) -> None:
        """Only the loops: what is in memory changed."""
        for wake in self._loops:
            wake()
