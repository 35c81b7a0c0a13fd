"""Placement by table, and against a brute-force search."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.master.placement import Cluster, Outcome, Waiting, needs_of
from rolecall.master.seats import Need
from rolecall.spec.finding import Finding, Level
from rolecall.spec.node import NodeSpec, NodeState
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.resources import Resources
from rolecall.spec.role import RANK_ORDER, Role

from .harness import alive, make_node

TRAINER, STAGE, OBSERVER, SERVER = Role.TRAINER, Role.STAGE, Role.OBSERVER, Role.PARAMETER_SERVER
TWO_MACHINES = [
    alive(make_node("server-0", SERVER, 8, boot="m0")),
    alive(make_node("trainer-0", TRAINER, 2, boot="m0", cores=2)),
    alive(make_node("trainer-1", TRAINER, 2, boot="m1", cores=2)),
]


NOTHING_ASKED: Mapping[Role, Resources] = MappingProxyType({})


def place(
    roles: Mapping[Role, int],
    nodes: Iterable[NodeState],
    taken: Sequence[WorkerPlan],
    resources: Mapping[Role, Resources] = NOTHING_ASKED,
) -> Outcome:
    """The plan of a gang on these nodes, of which `taken` is occupied, or the reason why there is none."""
    return Cluster(nodes).seating(taken).place(needs_of(roles, resources))


def capacity(
    role: Role, nodes: Iterable[NodeState], taken: Sequence[WorkerPlan] = (), resources: Resources | None = None
) -> int:
    """The number of workers of `role` that the nodes can accept in addition to `taken`."""
    return Cluster(nodes).seating(taken).room(Need.of(role, resources))


def nodes_of(plan: GangPlan | Waiting) -> list[str]:
    """Each rank's node."""
    assert isinstance(plan, GangPlan), plan
    return [worker.node for worker in plan.workers]


def reason(outcome: GangPlan | Waiting) -> str:
    """The reason for having no plan."""
    assert isinstance(outcome, Waiting), outcome
    return outcome.reason


def test_a_gang_spreads_over_machines_in_rank_order() -> None:
    plan = place({TRAINER: 2, SERVER: 1}, TWO_MACHINES, [])
    assert nodes_of(plan) == ["server-0", "trainer-0", "trainer-1"]
    assert isinstance(plan, GangPlan)
    assert [worker.role_rank for worker in plan.workers] == [0, 0, 1]
    assert plan == place({TRAINER: 2, SERVER: 1}, TWO_MACHINES[::-1], [])


@pytest.mark.parametrize(
    ("wanted", "busy", "expected"),
    [
        ({TRAINER: 2}, 3, "waiting for 2 trainer slots: 1 of 4 is free"),
        ({TRAINER: 1}, 4, "waiting for 1 trainer slot: 0 of 4 are free"),
        ({TRAINER: 8}, 0, "waiting for 8 trainer slots: the cluster has 4 in total; add nodes or ask for fewer"),
        ({STAGE: 1}, 0, "waiting for 1 stage slot: the cluster has 0 in total; add nodes or ask for fewer"),
    ],
)
def test_the_reason_names_roles_and_counts(wanted: dict[Role, int], busy: int, expected: str) -> None:
    first = place({TRAINER: busy}, TWO_MACHINES, [])
    assert isinstance(first, GangPlan)
    outcome = place(wanted, TWO_MACHINES, first.workers)
    assert reason(outcome) == expected
    assert isinstance(outcome, Waiting)
    assert outcome.feasible == ("in total" not in expected)


def test_roles_that_share_a_machine_share_its_cores() -> None:
    nodes = [alive(make_node(f"{role}-0", role, 4, cores=4)) for role in (TRAINER, OBSERVER, SERVER)]
    assert isinstance(place({TRAINER: 2, OBSERVER: 2, SERVER: 4}, nodes, []), GangPlan)
    outcome = place({TRAINER: 3, OBSERVER: 2}, nodes, [])
    assert reason(outcome) == (
        "waiting for 3 trainer and 2 observer slots: they share machines that hold 4 in total; "
        "add nodes or ask for fewer"
    )


def test_a_node_with_cores_of_its_own_shares_them_with_nobody() -> None:
    nodes = [alive(make_node(f"trainer-{number}", TRAINER, 2, cores=2)) for number in range(2)]
    assert capacity(TRAINER, nodes) == 2
    quotas = [
        one.model_copy(
            update={
                "spec": one.spec.model_copy(update={"machine": one.spec.machine.model_copy(update={"exclusive": True})})
            }
        )
        for one in nodes
    ]
    assert capacity(TRAINER, quotas) == 4
    plan = place({TRAINER: 3}, quotas, [])
    assert isinstance(plan, GangPlan)
    assert capacity(TRAINER, quotas, plan.workers) == 1


def test_a_gpu_is_given_once_per_machine() -> None:
    nodes = [alive(make_node(name, TRAINER, 2, gpus=2)) for name in ("a", "b")]
    plan = place({TRAINER: 2}, nodes, [])
    assert isinstance(plan, GangPlan)
    assert {worker.gpu for worker in plan.workers} == {"GPU-m0-0", "GPU-m0-1"}
    assert reason(place({TRAINER: 1}, nodes, plan.workers)) == "waiting for 1 trainer slot: 0 of 2 are free"


SLOW_CLOCK = Finding(check="clock", level=Level.ERROR, message="its clock is 41 s behind the master's", remedy="NTP")
FULL = SLOW_CLOCK.model_copy(update={"check": "disk", "level": Level.WARNING, "message": "its disk is nearly full"})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"alive": False}, "the cluster has 0 in total; add nodes or ask for fewer"),
        ({"draining": True}, "0 of 2 are free; trainer-0 takes none: it is draining"),
        (
            {"findings": (FULL, SLOW_CLOCK)},
            "0 of 2 are free; trainer-0 takes none: its clock is 41 s behind the master's",
        ),
    ],
)
def test_dead_draining_and_unfit_nodes_offer_nothing(values: dict[str, Any], expected: str) -> None:
    nodes = [alive(make_node("trainer-0", TRAINER), **values)]
    assert capacity(TRAINER, nodes) == 0
    outcome = place({TRAINER: 1}, nodes, [])
    assert reason(outcome) == f"waiting for 1 trainer slot: {expected}"
    assert isinstance(outcome, Waiting)
    assert not outcome.feasible


@pytest.mark.parametrize("gpus", [0, 2])
def test_what_an_unfit_node_still_runs_is_not_given_out_again(gpus: int) -> None:
    nodes = [alive(make_node(name, TRAINER, 2, gpus=gpus, cores=2)) for name in ("a", "b")]
    first = place({TRAINER: 1}, nodes, [])
    assert nodes_of(first) == ["a"]
    assert isinstance(first, GangPlan)
    after = [nodes[0].model_copy(update={"findings": (SLOW_CLOCK,)}), nodes[1]]
    assert capacity(TRAINER, after, first.workers) == 1
    second = place({TRAINER: 1}, after, first.workers)
    assert nodes_of(second) == ["b"]
    assert isinstance(second, GangPlan)
    assert not gpus or second.workers[0].gpu != first.workers[0].gpu
    assert isinstance(place({TRAINER: 2}, after, first.workers), Waiting)


def test_a_warning_keeps_nobody_away() -> None:
    assert nodes_of(place({TRAINER: 1}, [alive(make_node("trainer-0", TRAINER), findings=(FULL,))], [])) == [
        "trainer-0"
    ]


def test_only_nodes_of_roles_that_are_asked_for_are_named_and_equal_reasons_once() -> None:
    nodes = [alive(make_node(name, TRAINER), findings=(SLOW_CLOCK,)) for name in ("a", "b", "c")]
    nodes += [alive(make_node("d", TRAINER, 1, boot="m1")), alive(make_node("e", STAGE), draining=True)]
    said = reason(place({TRAINER: 2}, nodes, []))
    assert (
        said
        == "waiting for 2 trainer slots: 1 of 5 is free; a, b and c take none: its clock is 41 s behind the master's"
    )


def at(address: str, name: str, role: Role, boot: str, namespace: str = "net:[1]") -> NodeState:
    """A node with one slot at `address`."""
    spec = make_node(name, role, 1, boot=boot)
    return alive(spec.model_copy(update={"address": address, "network_namespace": namespace}))


def test_a_loopback_address_leads_no_gang_to_another_machine() -> None:
    near, far = at("127.0.0.1", "a", TRAINER, "m0"), at("10.0.0.2", "b", TRAINER, "m1")
    outcome = place({TRAINER: 2}, [near, far], [])
    assert reason(outcome) == (
        "waiting for 2 trainer slots that reach each other: a can only be reached on its own machine; set MASTER_ADDR "
        "there to an address of the master that other machines reach"
    )
    assert isinstance(outcome, Waiting)
    assert not outcome.feasible
    assert nodes_of(place({TRAINER: 1}, [near], [])) == ["a"]
    assert nodes_of(place({TRAINER: 2}, [far, at("10.0.0.3", "c", TRAINER, "m2"), near], [])) == ["b", "c"]


def test_loopback_is_shared_within_a_network_namespace_alone() -> None:
    own, same = at("127.0.0.1", "a", TRAINER, "m0"), at("127.0.0.1", "b", TRAINER, "m0")
    other = at("127.0.0.1", "c", TRAINER, "m0", namespace="net:[2]")
    assert nodes_of(place({TRAINER: 2}, [own, same, other], [])) == ["a", "b"]
    assert "a and c can only be reached on their own machine" in reason(place({TRAINER: 2}, [own, other], []))


def test_an_earlier_role_makes_room_for_a_later_one() -> None:
    """Stages fit on both machines, the observer on the first one only."""
    nodes = [
        alive(make_node("stage-0", STAGE, 1, boot="m0", cores=1)),
        alive(make_node("stage-1", STAGE, 1, boot="m1", cores=1)),
        alive(make_node("observer-0", OBSERVER, 1, boot="m0", cores=1)),
    ]
    assert nodes_of(place({STAGE: 1, OBSERVER: 1}, nodes, [])) == ["stage-1", "observer-0"]


def test_threads_are_a_fair_share() -> None:
    spec = make_node("trainer-0", TRAINER, 2, cores=8)
    spec = spec.model_copy(update={"machine": spec.machine.model_copy(update={"cpu_slots": 2})})
    plan = place({TRAINER: 2}, [alive(spec)], [])
    assert isinstance(plan, GangPlan)
    assert [worker.threads for worker in plan.workers] == [4, 4]


clusters = st.lists(
    st.tuples(st.sampled_from([TRAINER, OBSERVER, SERVER]), st.integers(1, 3), st.sampled_from(["m0", "m1"])),
    min_size=1,
    max_size=4,
)
wants = st.fixed_dictionaries({TRAINER: st.integers(0, 3), OBSERVER: st.integers(0, 2), SERVER: st.integers(0, 2)})
gpus = st.fixed_dictionaries({"m0": st.integers(0, 2), "m1": st.just(0)})
devices = st.sampled_from([None, 0, 1])
asks = st.fixed_dictionaries(
    {
        role: st.builds(Resources, gpus=devices, threads=st.sampled_from([None, 1, 2]), busy=st.booleans())
        for role in (TRAINER, OBSERVER, SERVER)
    }
)


def build(
    cluster: list[tuple[Role, int, str]], gpu_counts: dict[str, int], cpu_slots: int = 2, workers_per_gpu: int = 1
) -> list[NodeState]:
    """Nodes of machines with two cores each."""
    shape: dict[str, Any] = {"cores": 2, "cpu_slots": cpu_slots, "workers_per_gpu": workers_per_gpu}
    return [
        alive(make_node(f"n{i}", role, slots, boot=boot, gpus=gpu_counts[boot], **shape))
        for i, (role, slots, boot) in enumerate(cluster)
    ]


def check_ledgers(nodes: list[NodeState], workers: list[WorkerPlan]) -> None:
    """No node, machine or GPU bears more than it offers."""
    specs = {node.spec.name: node.spec for node in nodes}
    assert all(count <= specs[name].slots for name, count in Counter(w.node for w in workers).items())
    gpu_counts = Counter((specs[w.node].machine.boot_id, w.gpu) for w in workers if w.gpu)
    assert all(count <= specs[workers[0].node].machine.workers_per_gpu for count in gpu_counts.values())
    for boot in ("m0", "m1"):
        mine = [w for w in workers if specs[w.node].machine.boot_id == boot and not w.gpu]
        assert sum(w.threads for w in mine if w.role.computes) <= 2
        assert sum(w.threads if w.threads > 1 else w.role.weight for w in mine if not w.role.computes) <= 2


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(clusters, st.tuples(wants, wants), gpus, st.tuples(asks, asks), st.tuples(st.integers(1, 2), st.integers(1, 2)))
def test_never_over_a_ledger_and_whole_or_nothing(
    cluster: list[tuple[Role, int, str]],
    jobs: tuple[dict[Role, int], dict[Role, int]],
    gpu_counts: dict[str, int],
    resources: tuple[dict[Role, Resources], dict[Role, Resources]],
    settings: tuple[int, int],
) -> None:
    nodes = build(cluster, gpu_counts, *settings)
    taken: list[WorkerPlan] = []
    for wanted, own in zip(jobs, resources, strict=True):
        plan = place(wanted, nodes, taken, own)
        if isinstance(plan, GangPlan):
            assert all(own[w.role].gpus in {None, int(w.gpu is not None)} for w in plan.workers)
            assert all(own[w.role].threads in {None, w.threads} for w in plan.workers)
            assert Counter(w.role for w in plan.workers) == Counter(wanted)
            assert [w.rank for w in plan.workers] == list(range(plan.world_size))
            assert [w.role for w in plan.workers] == sorted((w.role for w in plan.workers), key=RANK_ORDER.index)
            taken += plan.workers
        check_ledgers(nodes, taken)


@settings(max_examples=150, deadline=None)
@given(
    clusters,
    st.fixed_dictionaries({TRAINER: st.integers(0, 3), OBSERVER: st.integers(0, 2)}),
    gpus,
    st.fixed_dictionaries({TRAINER: devices, OBSERVER: devices}),
    st.integers(1, 2),
)
def test_a_gang_is_found_whenever_there_is_one(
    cluster: list[tuple[Role, int, str]],
    wanted: dict[Role, int],
    gpu_counts: dict[str, int],
    asked: dict[Role, int | None],
    workers_per_gpu: int,
) -> None:
    nodes = build(cluster, gpu_counts, workers_per_gpu=workers_per_gpu)
    places = {boot: count * workers_per_gpu for boot, count in gpu_counts.items()}

    def uses_gpu(node: NodeState) -> bool:
        return asked[node.spec.role] == 1 or (
            asked[node.spec.role] is None and gpu_counts[node.spec.machine.boot_id] > 0
        )

    def fits(counts: Sequence[int]) -> bool:
        seated = [(node, count) for node, count in zip(nodes, counts, strict=True) if count]
        return all(sum(k for n, k in seated if n.spec.role is role) == most for role, most in wanted.items()) and all(
            sum(k for n, k in seated if n.spec.machine.boot_id == boot and uses_gpu(n) is on_gpu)
            <= (places[boot] if on_gpu else 2)
            for boot in ("m0", "m1")
            for on_gpu in (True, False)
        )

    ranges = [range(min(n.spec.slots, 4) + 1) if n.spec.role.computes else range(1) for n in nodes]
    exists = any(fits(counts) for counts in product(*ranges))
    resources = {role: Resources(gpus=own) for role, own in asked.items()}
    assert isinstance(place(wanted, nodes, [], resources), GangPlan) == exists


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(clusters, wants, gpus, st.lists(st.booleans(), min_size=8, max_size=8), asks)
def test_the_room_is_the_largest_number_that_can_be_placed(
    cluster: list[tuple[Role, int, str]],
    first: dict[Role, int],
    gpu_counts: dict[str, int],
    seen: list[bool],
    resources: dict[Role, Resources],
) -> None:
    nodes = [
        alive(_with_a_part(node.spec, seen[2 * number : 2 * number + 2]))
        for number, node in enumerate(build(cluster, gpu_counts))
    ]
    before = place(first, nodes, [])
    taken = before.workers if isinstance(before, GangPlan) else ()
    for role in (TRAINER, OBSERVER, SERVER):
        placed = (count for count in range(40) if isinstance(place({role: count}, nodes, taken, resources), GangPlan))
        assert capacity(role, nodes, taken, resources[role]) == max(placed)


def _with_a_part(spec: NodeSpec, seen: list[bool]) -> NodeSpec:
    """Of its machine's GPUs the node sees the first one and those that are marked."""
    part = tuple(gpu for number, gpu in enumerate(spec.machine.gpus) if number == 0 or seen[number])
    return spec.model_copy(update={"machine": spec.machine.model_copy(update={"gpus": part})})


def test_room_among_many_machines_is_counted_at_once() -> None:
    nodes = [alive(make_node(f"server-{i}", SERVER, 8 * 64, boot=f"m{i}", cores=64)) for i in range(50)]
    begin = time.perf_counter()
    assert capacity(SERVER, nodes) == 50 * 8 * 64
    assert time.perf_counter() - begin < 1


def test_a_search_is_no_deeper_than_a_gang_has_roles() -> None:
    roles = (TRAINER, SERVER)
    nodes = [alive(make_node(f"{role}-{m}", role, 1, boot=f"m{m}", gpus=1)) for m in range(500) for role in roles]
    found = reason(place(dict.fromkeys(roles, 256), nodes, [], dict.fromkeys(roles, Resources(gpus=1))))
    assert found.endswith("they share machines that hold 500 in total; add nodes or ask for fewer")
