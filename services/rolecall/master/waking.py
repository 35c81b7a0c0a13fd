"""Who is to look again after a commit: the view, the loops, the nodes of the gang, and those who follow the job.

Whoever changes what is stored calls one of these afterwards. Nobody else is woken: a change costs as much as its gang
is wide.
"""

from collections.abc import Callable, Iterable

from rolecall.master.answers import Answers
from rolecall.master.signals import Signals
from rolecall.master.view import View

TICK_S = 0.5
"""The loops look at least this often, for what only time changes."""


class Waking:
    """The ways to wake."""

    def __init__(self, view: View, answers: Answers, news: Signals) -> None:
        self._view = view
        self._answers = answers
        self._news = news
        self._reconcile: Callable[[], None] = lambda: None
        self._place: Callable[[], None] = lambda: None

    def connect(self, reconcile: Callable[[], None], place: Callable[[], None]) -> None:
        """Name the loops, which are made later."""
        self._reconcile, self._place = reconcile, place

    def jobs(self, *jobs: str) -> None:
        """These jobs changed, but not what any node should run."""
        self._view.note(jobs=jobs)
        self._news.notify(*jobs)
        self.loops()

    def queued(self, job: str) -> None:
        """The job is new: it is to be placed, and nothing else is to be done about it."""
        self._view.note(jobs=[job])
        self._news.notify(job)
        self._place()

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
        self._reconcile()
        self._place()
