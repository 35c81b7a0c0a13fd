"""The conditions under which a node ends its own workers, and the report of a refusal."""

import pytest

from rolecall.node.client import MasterRefuses, MasterUnreachable
from rolecall.node.contact import Contact
from rolecall.spec.finding import Level


@pytest.mark.parametrize(
    ("partitioned", "answered_at", "node_timeout_s", "now", "fences"),
    [
        (True, 100.0, 10.0, 131.0, True),
        (True, 100.0, 10.0, 129.0, False),
        (True, 100.0, 50.0, 131.0, False),  # The master does not yet count it as lost.
        (True, 100.0, None, 131.0, True),  # A master of an earlier release.
        (False, 100.0, 10.0, 10_000.0, False),  # The master is unavailable, but there is no partition.
        (True, None, None, 10_000.0, False),  # There was never a master to lose.
    ],
)
def test_a_node_is_fenced_only_when_it_is_partitioned_and_must_count_as_lost(
    partitioned: bool, answered_at: float | None, node_timeout_s: float | None, now: float, fences: bool
) -> None:
    contact = Contact(fence_s=30.0, node_timeout_s=node_timeout_s, answered_at=answered_at)
    assert (contact.fence_reason(partitioned=partitioned, now=now) is not None) is fences


def test_a_node_that_its_master_refuses_is_fenced_when_it_must_count_as_lost() -> None:
    contact = Contact(fence_s=30.0, node_timeout_s=40.0)
    refuses = MasterRefuses("the token is revoked", by_master=True)
    contact.failed(refuses, 0.0)
    assert contact.fence_reason(partitioned=False, now=100.0) is None, "it never had workers"
    contact.answered(100.0)
    # While the master is unavailable, or a proxy answers for it, nothing is placed elsewhere.
    for error, at in ((MasterUnreachable("away"), 110.0), (MasterRefuses("a proxy refuses"), 120.0), (refuses, 300.0)):
        contact.failed(error, at)
        assert contact.fence_reason(partitioned=False, now=at) is None
    contact.failed(refuses, 340.0)
    assert contact.fence_reason(partitioned=False, now=340.0) is None
    contact.failed(MasterUnreachable("busy"), 340.5)
    assert contact.fence_reason(partitioned=False, now=341.0) is None, "this call was not refused"
    contact.failed(refuses, 341.0)
    reason = "the master refused this node for 41 s (ROLECALL_FENCE_S): the token is revoked"
    assert contact.fence_reason(partitioned=False, now=341.0) == reason
    contact.failed(refuses, 382.0)
    assert contact.fence_reason(partitioned=False, now=382.0) is None, "the master was away, and has just started"
    contact.answered(420.0)
    contact.failed(refuses, 430.0)
    assert contact.fence_reason(partitioned=False, now=430.0) is None


def test_a_refusal_that_is_over_is_reported_for_a_while() -> None:
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
