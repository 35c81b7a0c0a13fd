"""Each way to wake, with the view, the answers and the signals of a real master: who looks again, and who does not."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rolecall.master.store import jobs, nodes
from rolecall.master.waking import Waking
from rolecall.spec.job import JobSpec
from rolecall.spec.role import Role

from .harness import ManualClock, make_node, still_master

NOW = datetime(2030, 1, 1, tzinfo=UTC)
BOTH = ["reconciler", "placer"]


@pytest.mark.parametrize(
    ("wake", "loops", "followed", "answered", "read"),
    [
        (lambda waking: waking.jobs("mine"), BOTH, {"mine"}, set(), {"mine"}),
        (lambda waking: waking.queued("mine"), ["placer"], {"mine"}, set(), {"mine"}),
        (lambda waking: waking.gang("mine", ["near"]), BOTH, {"mine"}, {"near"}, {"mine"}),
        (lambda waking: waking.nodes("near"), BOTH, set(), {"near"}, {"near"}),
        (lambda waking: waking.followers("mine"), [], {"mine"}, set(), set()),
        (lambda waking: waking.loops(), BOTH, set(), set(), set()),
    ],
    ids=["jobs", "queued", "gang", "nodes", "followers", "loops"],
)
async def test_those_whom_a_change_concerns_look_again_and_nobody_else(
    tmp_path: Path,
    *,
    wake: Callable[[Waking], None],
    loops: list[str],
    followed: set[str],
    answered: set[str],
    read: set[str],
) -> None:
    async with still_master(tmp_path, ManualClock()) as master:
        woken: list[str] = []
        master.waking.connect(lambda: woken.append("reconciler"), lambda: woken.append("placer"))
        await master.view.refresh()
        async with master.database.write() as connection:
            for job in ("mine", "other"):
                await jobs.add(connection, JobSpec(id=job, workload="toy", roles={Role.TRAINER: 1}), NOW)
            for node in ("near", "far"):
                await nodes.put(connection, make_node(node, Role.TRAINER), NOW)
        followers = {job: master.news.ticket(job) for job in ("mine", "other")}
        calls = {node: master.answers.ticket(node) for node in ("near", "far")}
        wake(master.waking)
        assert woken == loops
        assert {job for job, ticket in followers.items() if ticket.is_set()} == followed
        assert {node for node, ticket in calls.items() if ticket.is_set()} == answered
        await master.view.refresh()
        assert {*master.view.queue, *master.view.nodes} == read
