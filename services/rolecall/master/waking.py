"""Notifications after a commit, to the view, the loops, the nodes of a gang, and followers of a job.

Code that commits a change calls one of these methods afterwards. Only affected parts are woken, so the cost of a change
depends only on the size of its gang.
"""

from collections.abc import Callable, Iterable, Mapping

from rolecall.master.answers import Answers
from rolecall.master.signals import Signals
from rolecall.master.transitions import NodeLoss
from rolecall.master.view import View

TICK_S = 0.5
"""The maximum interval between passes of the loops, for changes that only time causes."""


class Waking:
    """The notifications of changes."""

    def __init__(self, view: View, answers: Answers, news: Signals) -> None:
        self._view = view
        self._answers = answers
        self._news = news
        self._reconcile: Callable[[], None] = lambda: None
        self._place: Callable[[], None] = lambda: None

    def connect(self, reconcile: Callable[[], None], place: Callable[[], None]) -> None:
        """Set the functions that wake the loops, which are created later."""
        self._reconcile, self._place = reconcile, place

    def jobs(self, *jobs: str) -> None:
        """Notify of changed jobs, which don't change any node's desired workers."""
        self._view.note(jobs=jobs)
        self._news.notify(*jobs)
        self.loops()

    def queued(self, job: str) -> None:
        """Notify of a new job, which only the placer needs to process."""
        self._view.note(jobs=[job])
        self._news.notify(job)
        self._place()

    def gang(self, job: str, nodes: Iterable[str]) -> None:
        """Notify of a changed job, which changes the desired workers of these nodes."""
        self._answers.notify(*nodes)
        self.jobs(job)

    def lost(self, loss: NodeLoss) -> None:
        """Notify of the loss of a node."""
        self.jobs(*loss.jobs)
        self.gangs(loss.broken)

    def gangs(self, nodes: Mapping[str, Iterable[str]]) -> None:
        """As `gang`, for the nodes of each job."""
        for job, its_nodes in nodes.items():
            self.gang(job, its_nodes)

    def nodes(self, *nodes: str) -> None:
        """Notify of nodes that registered, left or changed."""
        self._view.note(nodes=nodes)
        self._answers.notify(*nodes)
        self.loops()

    def followers(self, *jobs: str) -> None:
        """Notify followers of these jobs that there is more to read."""
        self._news.notify(*jobs)

    def loops(self) -> None:
        """Wake only the loops, after a change in memory."""
        self._reconcile()
        self._place()
