# pyright: standard
"""The queue's order, backfill, and that nobody starves."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cpu_time import is_within

from rolecall.master import placement, scheduler
from rolecall.master.placement import Cluster, Outcome, Waiting
from rolecall.master.scheduler import Allowance, Earlier, PerNodeJob, QueuedJob, schedule
from rolecall.master.seats import Seat, occupied_seat
from rolecall.spec.node import NodeSpec
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.resources import Resources
from rolecall.spec.role import Role

from .harness import alive, make_node

NOW = datetime(2030, 1, 1, tzinfo=UTC)
WINDOW = timedelta(seconds=60)
NODES = [
    alive(make_node("trainer-0", Role.TRAINER, 4, cores=4)),
    alive(make_node("server-0", Role.PARAMETER_SERVER, 4, cores=4)),
]


def job(name: str, trainers: int, *, age_s: float = 0, priority: int = 0, servers: int = 0) -> QueuedJob:
    """A job that has waited `age_s` seconds."""
    at = NOW - timedelta(seconds=age_s)
    roles = {Role.TRAINER: trainers, Role.PARAMETER_SERVER: servers}
    return QueuedJob(id=name, roles=roles, priority=priority, created_at=at, queued_at=at)


def placed(queue: list[QueuedJob], taken: list[WorkerPlan] | None = None) -> list[str]:
    """The jobs that get a place."""
    outcomes = schedule(queue, NODES, taken or [], NOW, WINDOW)
    return [name for name, outcome in outcomes.items() if isinstance(outcome, GangPlan)]


def busy(trainers: int) -> list[WorkerPlan]:
    """Trainers that run already."""
    outcome = schedule([job("x", trainers)], NODES, [], NOW, WINDOW)["x"]
    assert isinstance(outcome, GangPlan)
    return list(outcome.workers)


def test_priority_goes_first_then_age() -> None:
    queue = [job("young", 2), job("old", 2, age_s=5), job("urgent", 2, priority=1)]
    assert placed(queue) == ["urgent", "old"]


def test_who_fits_goes_ahead_of_who_waits() -> None:
    assert placed([job("large", 4, age_s=59), job("small", 1)], busy(1)) == ["small"]


def test_who_waited_long_holds_the_others_back_from_its_roles() -> None:
    queue = [job("large", 4, age_s=61), job("small", 1), job("server", 0, servers=1)]
    outcomes = schedule(queue, NODES, busy(1), NOW, WINDOW)
    assert placed(queue, busy(1)) == ["server"]
    held = outcomes["small"]
    assert isinstance(held, Waiting)
    why = "waiting for 4 trainer slots: 3 of 4 are free"
    assert held.reason == f"held back for job large, which goes first and is {why}"
    others = schedule([replace(queue[0], owner="bob"), queue[1]], NODES, busy(1), NOW, WINDOW)["small"]
    assert isinstance(others, Waiting)
    assert others.reason == others.lasting == "held back for a job of another token, which goes first"


def test_who_can_never_fit_holds_nobody_back() -> None:
    assert placed([job("huge", 5, age_s=1000), job("small", 1)]) == ["small"]


def test_rivals_for_the_same_cores_are_held_back_too() -> None:
    nodes = [alive(make_node(f"{role}-0", role, 2, cores=2)) for role in (Role.TRAINER, Role.OBSERVER)]
    watcher = QueuedJob(id="watcher", roles={Role.OBSERVER: 1}, priority=0, created_at=NOW, queued_at=NOW)
    one = schedule([watcher], nodes, [], NOW, WINDOW)["watcher"]
    assert isinstance(one, GangPlan)
    outcomes = schedule([job("large", 2, age_s=61), watcher], nodes, one.workers, NOW, WINDOW)
    assert not any(isinstance(outcome, GangPlan) for outcome in outcomes.values())


def test_rivals_for_the_same_gpus_are_held_back_too() -> None:
    nodes = [alive(make_node(f"{role}-0", role, 9, gpus=2)) for role in (Role.TRAINER, Role.PARAMETER_SERVER)]
    server = replace(job("server", 0, servers=1), resources={Role.PARAMETER_SERVER: Resources(gpus=1)})
    one = schedule([server], nodes, [], NOW, WINDOW)["server"]
    assert isinstance(one, GangPlan)
    outcomes = schedule([job("large", 2, age_s=61), server], nodes, one.workers, NOW, WINDOW)
    assert not any(isinstance(outcome, GangPlan) for outcome in outcomes.values())


@pytest.mark.parametrize(("slots", "expected"), [(6, {"server", "on-cpu"}), (5, {"server"})])
def test_who_can_use_neither_the_gpus_nor_the_slots_of_a_waiting_job_is_not_held_back(
    slots: int, expected: set[str]
) -> None:
    nodes = [
        alive(make_node("trainer-0", Role.TRAINER, slots, gpus=2)),
        alive(make_node("server-0", Role.PARAMETER_SERVER, 34, gpus=2)),
    ]
    running = schedule([job("running", 1)], nodes, [], NOW, WINDOW)["running"]
    assert isinstance(running, GangPlan)
    queue = [
        job("large", 2, age_s=61),
        job("small", 1),
        job("server", 0, servers=1),
        replace(job("on-cpu", 1), resources={Role.TRAINER: Resources(gpus=0)}),
    ]
    outcomes = schedule(queue, nodes, running.workers, NOW, WINDOW)
    assert {name for name, outcome in outcomes.items() if isinstance(outcome, GangPlan)} == expected


def test_the_seat_of_a_worker_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[WorkerPlan] = []

    def counting(spec: NodeSpec, worker: WorkerPlan) -> Seat:
        found.append(worker)
        return occupied_seat(spec, worker)

    monkeypatch.setattr(placement, "occupied_seat", counting)
    nodes = [alive(make_node("trainer-0", Role.TRAINER, 20, cores=20))]
    outcomes = schedule([job(f"{number}", 1, age_s=30 - number) for number in range(20)], nodes, [], NOW, WINDOW)
    assert all(isinstance(outcome, GangPlan) for outcome in outcomes.values())
    assert len(found) == 20


def per_node_job(*only: str) -> QueuedJob:
    """A job that runs on each node, or on each of `only`."""
    return QueuedJob(
        id="all", roles={}, priority=0, created_at=NOW, queued_at=NOW - 2 * WINDOW, per_node=True, only=only
    )


def test_a_node_runs_one_per_node_job_at_a_time() -> None:
    first, here, there = (
        per_node_job(),
        replace(per_node_job("trainer-0"), id="here"),
        replace(per_node_job("server-0"), id="s"),
    )
    queue = [replace(one, created_at=NOW + timedelta(seconds=at)) for at, one in enumerate((here, first, there))]
    outcomes = schedule(queue, NODES, [], NOW, WINDOW)
    assert _places(outcomes["here"]) == {"trainer-0"}
    waits = outcomes["all"]
    assert isinstance(waits, Waiting)
    assert waits.reason.endswith("a node runs one such job at a time, and job here goes first on node trainer-0")
    assert "job here" not in waits.lasting
    assert isinstance(outcomes["s"], Waiting), "else jobs on a few nodes could keep one on all of them waiting for good"
    running = schedule([first, there], NODES, [], NOW, WINDOW, {}, {"trainer-0": PerNodeJob("here", "bob")})
    assert isinstance(running["all"], Waiting)
    assert running["all"].reason.endswith("and a job of another token goes first on node trainer-0")
    other = schedule([there], NODES, [], NOW, WINDOW, {}, {"trainer-0": PerNodeJob("here", "")})["s"]
    assert _places(other) == {"server-0"}


def test_the_workers_of_a_per_node_job_count_for_its_owner() -> None:
    watched = replace(per_node_job(), owner="alice")
    outcome = schedule([watched], NODES, [], NOW, WINDOW, {"alice": Allowance(limit=2, used=1)})["all"]
    assert isinstance(outcome, Waiting)
    assert outcome.reason.endswith("token alice uses 1 of its 2 slots, and this job needs 2")
    mine = replace(job("small", 1, age_s=-1), owner="alice")
    both = schedule([watched, mine], NODES, [], NOW, WINDOW, {"alice": Allowance(limit=2, used=0)})
    assert [isinstance(both[name], GangPlan) for name in ("all", "small")] == [True, False]
    free = schedule([watched, replace(per_node_job(), id="other")], NODES, [], NOW, WINDOW, {"alice": Allowance(1, 0)})
    assert isinstance(free["other"], GangPlan), "who waits for its owner's limit holds no node"


def test_a_per_node_job_whose_workload_is_gone_waits_for_it() -> None:
    orphan = QueuedJob(id="orphan", roles={}, priority=0, created_at=NOW, queued_at=NOW - 2 * WINDOW)
    outcomes = schedule([orphan, job("small", 1)], NODES, [], NOW, WINDOW)
    assert isinstance(outcomes["small"], GangPlan)
    outcome = outcomes["orphan"]
    assert isinstance(outcome, Waiting)
    assert outcome.reason.startswith("waiting for its workload, which is not installed")


def test_a_per_node_job_has_one_worker_on_each_node_however_busy() -> None:
    outcomes = schedule([per_node_job(), job("small", 1)], NODES, busy(3), NOW, WINDOW)
    plan = outcomes["all"]
    assert isinstance(plan, GangPlan)
    assert [(w.rank, w.role, w.role_rank, w.node, w.gpu) for w in plan.workers] == [
        (0, Role.PARAMETER_SERVER, 0, "server-0", None),
        (1, Role.TRAINER, 0, "trainer-0", None),
    ]
    assert isinstance(outcomes["small"], GangPlan)


def test_a_per_node_job_has_no_worker_on_lost_and_draining_nodes() -> None:
    nodes = [
        *NODES,
        alive(make_node("gone", Role.STAGE), alive=False),
        alive(make_node("off", Role.STAGE), draining=True),
    ]
    plan = schedule([per_node_job()], nodes, [], NOW, WINDOW)["all"]
    assert isinstance(plan, GangPlan)
    assert {worker.node for worker in plan.workers} == {"server-0", "trainer-0"}


def test_who_is_to_run_on_unavailable_nodes_waits_for_them_and_holds_nobody_back() -> None:
    outcomes = schedule([per_node_job("trainer-0", "gone"), job("small", 1)], NODES, [], NOW, WINDOW)
    waiting = outcomes["all"]
    assert isinstance(waiting, Waiting)
    assert waiting.reason == "waiting for nodes that are lost, draining or not registered: gone"
    assert isinstance(outcomes["small"], GangPlan)
    nobody = schedule([per_node_job()], [], [], NOW, WINDOW)["all"]
    assert isinstance(nobody, Waiting)


def test_chosen_nodes_are_the_only_ones() -> None:
    plan = schedule([per_node_job("trainer-0")], NODES, [], NOW, WINDOW)["all"]
    assert isinstance(plan, GangPlan)
    assert [worker.node for worker in plan.workers] == ["trainer-0"]


def test_a_plan_says_where_its_nodes_are_reached() -> None:
    outcomes = schedule([per_node_job(), job("small", 1)], NODES, [], NOW, WINDOW)
    addresses = {node.spec.name: node.spec.address for node in NODES}
    assert [outcome.addresses for outcome in outcomes.values() if isinstance(outcome, GangPlan)] == [
        addresses,
        {"trainer-0": addresses["trainer-0"]},
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=40), st.integers(1, 4))
def test_nobody_starves(stream: list[int], wanted: int) -> None:
    """However many small jobs come, each a minute long, a large one runs within the window and one job's length."""
    running: list[tuple[datetime, list[WorkerPlan]]] = []
    waiting = [job("large", wanted)]
    for minute in range(len(stream) + 4):
        now = NOW + timedelta(minutes=minute)
        running = [(end, plans) for end, plans in running if end > now]
        if minute < len(stream):
            arrived = job(f"small-{minute}", stream[minute], priority=0)
            waiting.append(QueuedJob(arrived.id, arrived.roles, 0, created_at=now, queued_at=now))
        taken = [worker for _, plans in running for worker in plans]
        outcomes = schedule(waiting, NODES, taken, now, WINDOW)
        for name, outcome in outcomes.items():
            if isinstance(outcome, GangPlan):
                running.append((now + timedelta(minutes=1), list(outcome.workers)))
                waiting = [one for one in waiting if one.id != name]
    assert "large" not in {one.id for one in waiting}


def test_who_is_at_its_limit_waits_and_holds_nobody_back() -> None:
    mine = [replace(job(name, 2, age_s=61), owner="alice") for name in ("a", "b", "c")]
    queue = [*mine, replace(job("other", 2), owner="bob")]
    outcomes = schedule(queue, NODES, [], NOW, WINDOW, {"alice": Allowance(limit=3, used=1)})
    assert [name for name, outcome in outcomes.items() if isinstance(outcome, GangPlan)] == ["a", "other"]
    waits = outcomes["b"]
    assert isinstance(waits, Waiting)
    assert waits.reason.endswith("token alice uses 3 of its 3 slots, and this job needs 2")


def test_nodes_to_avoid_are_taken_only_if_there_is_no_other_place() -> None:
    spare = alive(make_node("trainer-1", Role.TRAINER, 1, boot="m1"))
    wary = replace(job("wary", 1), avoid=("trainer-0",))
    assert _places(schedule([wary], [*NODES, spare], [], NOW, WINDOW)["wary"]) == {"trainer-1"}
    both = schedule([wary, job("other", 1)], [*NODES, spare], [], NOW, WINDOW)
    assert _places(both["other"]) == {"trainer-0"}, "of the same shape, but free to go there"
    large = replace(wary, roles={Role.TRAINER: 2})
    assert _places(schedule([large], [*NODES, spare], [], NOW, WINDOW)["wary"]) >= {"trainer-0"}


def test_what_runs_on_a_node_to_avoid_takes_its_share_of_the_machine() -> None:
    nodes = [alive(make_node(name, Role.TRAINER, 2, cores=2)) for name in ("trainer-0", "trainer-1")]
    first = schedule([replace(job("x", 2), avoid=("trainer-1",))], nodes, [], NOW, WINDOW)["x"]
    assert isinstance(first, GangPlan)
    assert _places(first) == {"trainer-0"}
    wary = replace(job("wary", 1), avoid=("trainer-0",))
    assert isinstance(schedule([wary], nodes, first.workers, NOW, WINDOW)["wary"], Waiting)


RIVALS = (Role.TRAINER, Role.OBSERVER)
"""Roles that share the cores of a machine."""


def gang(name: str, trainers: int, observers: int, *, age_s: float = 0, owner: str = "") -> QueuedJob:
    """A job whose placement needs a search, because its roles share machines."""
    own = replace(job(name, trainers, age_s=age_s), owner=owner)
    return replace(own, roles={Role.TRAINER: trainers, Role.OBSERVER: observers})


def test_a_thousand_gangs_that_need_a_search_each_delay_nobody_elses_job() -> None:
    """This holds for jobs that could never fit, too, and for any order of the queue."""
    machines = 30
    nodes = [alive(make_node(f"{r}-{m}", r, 64, boot=f"m{m}", cores=64)) for m in range(machines) for r in RIVALS]
    running = schedule([gang("x", 32 * machines, 0)], nodes, [], NOW, WINDOW)["x"]
    assert isinstance(running, GangPlan)
    most = 64 * machines
    never = [gang(f"never-{i}", most - 500 + i, 501 + i // 500, age_s=9, owner="mallory") for i in range(500)]
    later = [gang(f"later-{i}", most // 2 - 500 + i, 501, age_s=8, owner="mallory") for i in range(500)]
    cluster = Cluster(nodes)
    begin_s = time.thread_time()
    outcomes = schedule([*never, *later, gang("mine", 3, 2, owner="alice")], cluster, running.workers, NOW, WINDOW)
    took_s = time.thread_time() - begin_s
    assert isinstance(outcomes["mine"], GangPlan)
    assert "never-0" in outcomes
    assert len(outcomes) < 100
    assert is_within(took_s, 1.0), f"{took_s:.2f} s of CPU"


def test_the_owners_share_the_budget_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [alive(make_node(f"{role}-0", role, 9, cores=9)) for role in RIVALS]
    monkeypatch.setattr(scheduler, "_BUDGET", 4 * (len(nodes) + 10))
    many = [gang(f"many-{i}", 9 - i, 1 + i, age_s=60 - i, owner="mallory") for i in range(8)]
    same = [gang("same", 9, 1, age_s=1, owner="mallory")]
    queue = [*many, *same, gang("one", 9, 2, owner="alice"), gang("other", 9, 3, owner="bob")]
    cluster, earlier, decided = Cluster(nodes), Earlier(), list[str]()
    passes: list[str] = []
    while len(decided) < len(queue):
        outcomes = schedule(queue, cluster, [], NOW, WINDOW, earlier=earlier)
        passes.append(" ".join(name for name in outcomes if name not in decided))
        waiting = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Waiting)}
        earlier, decided = Earlier(waiting, _left(queue, outcomes)), list(outcomes)
    assert passes == ["many-0 same one other", "many-1 many-2 many-3 many-4", "many-5 many-6 many-7"]


def test_undecided_jobs_go_before_others_of_their_priority_only(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [alive(make_node(f"{role}-0", role, 9, cores=9)) for role in RIVALS]
    monkeypatch.setattr(scheduler, "_BUDGET", 1)
    left, older = gang("left", 1, 2, age_s=1, owner="alice"), gang("older", 2, 1, age_s=9, owner="alice")
    urgent = replace(gang("urgent", 2, 2, owner="alice"), priority=1)
    earlier = Earlier(undecided={"left"})
    assert list(schedule([left, older], nodes, [], NOW, WINDOW, earlier=earlier)) == ["left"]
    assert list(schedule([left, older, urgent], nodes, [], NOW, WINDOW, earlier=earlier)) == ["urgent"]


def test_a_job_is_not_held_back_for_one_that_turns_out_to_wait_for_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster([alive(make_node(f"{role}-0", role, 9, cores=9)) for role in RIVALS])
    monkeypatch.setattr(scheduler, "_BUDGET", 1)
    first = gang("first", 9, 2, owner="alice")
    waits = replace(
        gang("waits", 1, 1, age_s=WINDOW.total_seconds() + 9, owner="alice"),
        created_at=NOW + WINDOW,
        resources={Role.TRAINER: Resources(threads=3)},
    )
    held = replace(gang("held", 1, 1, owner="bob"), created_at=NOW + 2 * WINDOW)

    def outcomes(earlier: Earlier) -> dict[str, Outcome]:
        return schedule([first, waits, held], cluster, [], NOW, WINDOW, {"alice": Allowance(3, 0)}, {}, earlier)

    assert cluster.alone(waits.needs)[0], "an earlier pass has found this"
    one = outcomes(Earlier())
    assert "waits" not in one
    waiting = {name: why for name, why in one.items() if isinstance(why, Waiting)}
    assert waiting["held"].reason.startswith("held back for a job of another token")
    two = outcomes(Earlier(waiting, {"waits"}).lasting)
    assert isinstance(two["waits"], Waiting)
    assert isinstance(two["held"], GangPlan)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from("ab"), st.sampled_from([0, 70])),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_a_job_at_the_end_of_the_queue_changes_no_earlier_outcome(
    wants: list[tuple[int, int, str, float]], on_every_node: bool
) -> None:
    """The placer computes only the outcome of the new job then."""
    cluster = Cluster(
        [alive(make_node(f"{role}-{m}", role, 2, boot=f"m{m}", cores=2)) for m in range(2) for role in RIVALS]
    )
    queue = [gang(f"{i}", t, o, owner=own, age_s=age + 9 - i) for i, (t, o, own, age) in enumerate(wants) if t + o]
    queue += [per_node_job()] if on_every_node else []
    taken: list[WorkerPlan] = []

    def outcomes(*new: QueuedJob, earlier: Earlier = Earlier()) -> dict[str, Outcome]:  # noqa: B008 - immutable
        allowances, per_node_jobs = {"a": Allowance(3, 0)}, {cluster.nodes[0].spec.name: PerNodeJob("other", "b")}
        return schedule([*queue, *new], cluster, taken, NOW, WINDOW, allowances, per_node_jobs, earlier)

    while plans := {name: plan for name, plan in outcomes().items() if isinstance(plan, GangPlan)}:
        taken += [worker for plan in plans.values() for worker in plan.workers]
        queue = [one for one in queue if one.id not in plans]
    earlier = Earlier({name: why for name, why in outcomes().items() if isinstance(why, Waiting)})
    for t, o, owner in ((1, 0, "a"), (0, 2, "b"), (1, 1, "b"), (3, 1, "a")):
        new = gang("new", t, o, owner=owner)
        assert outcomes(new, earlier=earlier) == outcomes(new)
    every = replace(per_node_job(), id="every", created_at=NOW + WINDOW)
    assert outcomes(every, earlier=earlier) == outcomes(every)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from("ab"), st.sampled_from([0, 70])), max_size=9
    ),
    st.integers(1, 30),
)
def test_passes_with_a_budget_end_with_every_job_placed_that_fits(
    wants: list[tuple[int, int, str, float]], budget: int
) -> None:
    nodes = [alive(make_node(f"{role}-{m}", role, 3, boot=f"m{m}", cores=3)) for m in range(2) for role in RIVALS]
    queue = [gang(f"{i}", t, o, owner=own, age_s=age) for i, (t, o, own, age) in enumerate(wants) if t + o]
    taken: list[WorkerPlan] = []
    cluster, earlier, passes = Cluster(nodes), Earlier(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "_BUDGET", budget)
        while True:
            passes += 1
            assert passes <= 2 * len(wants) + 1
            outcomes = schedule(queue, cluster, taken, NOW, WINDOW, earlier=earlier)
            plans = {name: one for name, one in outcomes.items() if isinstance(one, GangPlan)}
            waiting = {name: one for name, one in outcomes.items() if isinstance(one, Waiting)}
            undecided = _left(queue, outcomes)
            taken += [worker for plan in plans.values() for worker in plan.workers]
            queue = [one for one in queue if one.id not in plans]
            earlier = Earlier({} if plans else waiting, undecided)
            if not plans and not undecided:
                break
    whole = schedule(queue, nodes, taken, NOW, WINDOW)
    assert not [name for name, outcome in whole.items() if isinstance(outcome, GangPlan)]


def test_a_job_that_waited_long_holds_others_back_also_in_a_pass_that_does_not_reach_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [alive(make_node(f"{role}-0", role, 9, cores=9)) for role in RIVALS]
    old = gang("old", 5, 4, age_s=70, owner="alice")
    running = schedule([gang("x", 3, 0)], nodes, [], NOW, WINDOW)["x"]
    assert isinstance(running, GangPlan)
    cluster = Cluster(nodes)
    assert isinstance(schedule([old], cluster, running.workers, NOW, WINDOW)["old"], Waiting)
    monkeypatch.setattr(scheduler, "_BUDGET", 1)
    first = replace(gang("first", 7, 2, age_s=10, owner="alice"), priority=1)
    queue, taken = [first, old, gang("young", 1, 1, owner="bob")], running.workers[:2]
    outcomes = schedule(queue, cluster, taken, NOW, timedelta(seconds=75))
    assert {name: type(outcome) for name, outcome in outcomes.items()} == {"first": Waiting, "young": GangPlan}
    cluster.seating([])  # Seats have changed, and with them all outcomes, but not what fits if nothing runs.
    outcomes = schedule(queue, cluster, taken, NOW, WINDOW)
    assert set(outcomes) == {"first", "young"}
    held = outcomes["young"]
    assert isinstance(held, Waiting)
    assert held.reason == "held back for a job of another token, which goes first"


def _left(queue: list[QueuedJob], outcomes: dict[str, Outcome]) -> set[str]:
    return {one.id for one in queue if one.id not in outcomes}


def _places(outcome: GangPlan | Waiting) -> set[str]:
    assert isinstance(outcome, GangPlan)
    return {worker.node for worker in outcome.workers}
