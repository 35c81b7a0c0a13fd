"""Each kind of wake-up, with the view, the answers and the signals of a real master: who looks again, who does not."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rolecall.master.store import jobs, nodes
from rolecall.master.transitions import NodeLoss
from rolecall.master.waking import Waking
from rolecall.spec.job import JobSpec
from rolecall.spec.role import Role

from .harness import ManualClock, make_node, still_master

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOBS, NODES = ("mine", "other"), ("near", "far")
BOTH = ["reconciler", "placer"]
WAKES: list[tuple[Callable[[Waking], None], list[str], set[str], set[str]]] = [
    # the call, the loops that look again, the jobs and nodes that are read again, those whose calls are answered
    (lambda waking: waking.jobs("mine"), BOTH, {"mine"}, {"mine"}),
    (lambda waking: waking.queued("mine"), ["placer"], {"mine"}, {"mine"}),
    (lambda waking: waking.gang("mine", ["near"]), BOTH, {"mine"}, {"mine", "near"}),
    (lambda waking: waking.gangs({"mine": ["near"]}), BOTH, {"mine"}, {"mine", "near"}),
    (lambda waking: waking.lost(NodeLoss({"mine"}, {})), BOTH, {"mine"}, {"mine"}),
    (lambda waking: waking.lost(NodeLoss({"mine"}, {"mine": {"far"}})), [*BOTH, *BOTH], {"mine"}, {"mine", "far"}),
    (lambda waking: waking.nodes("near"), BOTH, {"near"}, {"near"}),
    (lambda waking: waking.followers("mine"), [], set(), {"mine"}),
    (lambda waking: waking.loops(), BOTH, set(), set()),
]


async def test_those_whom_a_change_concerns_look_again_and_nobody_else(tmp_path: Path) -> None:
    async with still_master(tmp_path, ManualClock()) as master:
        woken: list[str] = []
        master.waking.connect(lambda: woken.append("reconciler"), lambda: woken.append("placer"))
        async with master.database.write() as connection:
            for job in JOBS:
                await jobs.add(connection, JobSpec(id=job, workload="toy", roles={Role.TRAINER: 1}), NOW)
            for node in NODES:
                await nodes.put(connection, make_node(node, Role.TRAINER), NOW)
        await master.view.refresh()
        for wake, loops, read, answered in WAKES:
            before = master.view.queue | master.view.nodes
            calls = {job: master.news.ticket(job) for job in JOBS} | {
                node: master.answers.ticket(node) for node in NODES
            }
            woken.clear()
            wake(master.waking)
            await master.view.refresh()
            after = master.view.queue | master.view.nodes
            assert woken == loops
            assert {name for name in after if after[name] is not before[name]} == read
            assert {name for name, ticket in calls.items() if ticket.is_set()} == answered
