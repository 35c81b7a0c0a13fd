"""The conditions under which a node ends its own workers, and the report of a refusal."""

import pytest

from rolecall.node.client import MasterRefuses, MasterUnreachable
from rolecall.node.contact import Contact
from rolecall.spec.finding import Level


@pytest.mark.parametrize(
    ("cut_off", "answered_at", "node_timeout_s", "now", "fences"),
    [
        (True, 100.0, 10.0, 131.0, True),
        (True, 100.0, 10.0, 129.0, False),
        (True, 100.0, 50.0, 131.0, False),  # The master does not yet count it as lost.
        (True, 100.0, None, 131.0, True),  # A master of an earlier release.
        (False, 100.0, 10.0, 10_000.0, False),  # The master is away, but nobody is cut off.
        (True, None, None, 10_000.0, False),  # There was never a master to lose.
    ],
)
def test_a_node_is_fenced_only_when_it_is_cut_off_and_must_count_as_lost(
    cut_off: bool, answered_at: float | None, node_timeout_s: float | None, now: float, fences: bool
) -> None:
    contact = Contact(fence_s=30.0, node_timeout_s=node_timeout_s, answered_at=answered_at)
    assert (contact.fence_reason(cut_off=cut_off, now=now) is not None) is fences


def test_a_refusal_that_is_over_is_told_for_a_while() -> None:
    contact = Contact(fence_s=30.0)
    contact.answered(0.0)
    contact.failed(MasterUnreachable("away"), 5.0)
    contact.answered(6.0)
    assert contact.findings(6.0) == ()
    contact.failed(MasterRefuses("the token is refused"), 10.0)
    contact.failed(MasterRefuses("the token is refused"), 12.0)
    assert contact.findings(12.0) == ()
    contact.answered(51.0)
    (reported,) = contact.findings(51.0)
    assert (reported.check, reported.level) == ("master", Level.WARNING)
    assert reported.message == "it was refused for 41 s: the token is refused"
    assert contact.findings(1000.0) == ()
