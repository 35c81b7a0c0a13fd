"""Placement by the GPUs and threads that a job asks for; `test_placement.py` has the properties."""

from pathlib import Path

import pytest

from rolecall.master.catalogue import load
from rolecall.master.placement import Waiting
from rolecall.spec.job import JobRequest
from rolecall.spec.plan import GangPlan
from rolecall.spec.resources import Resources
from rolecall.spec.role import Role

from .harness import alive, make_node
from .test_placement import OBSERVER, SERVER, STAGE, TRAINER, capacity, place, reason

ON_GPU, ON_CPU = Resources(gpus=1), Resources(gpus=0)


def test_a_server_gets_a_gpu_and_a_trainer_the_cpu_if_they_ask() -> None:
    nodes = [alive(make_node(f"{role}-0", role, 9, gpus=1)) for role in (SERVER, TRAINER)]
    plan = place({SERVER: 1, TRAINER: 2}, nodes, [], {SERVER: ON_GPU, TRAINER: ON_CPU})
    assert isinstance(plan, GangPlan)
    assert [worker.gpu for worker in plan.workers] == ["GPU-m0-0", None, None]
    assert [capacity(TRAINER, nodes, plan.workers, own) for own in (None, ON_GPU, ON_CPU)] == [0, 0, 2]
    assert [capacity(SERVER, nodes, plan.workers, own) for own in (None, ON_GPU, ON_CPU)] == [8, 0, 8]


@pytest.mark.parametrize(
    ("wanted", "own", "expected"),
    [
        (3, Resources(gpus=1), "waiting for 3 parameter-server slots with a GPU: 1 of 4 is free"),
        (9, Resources(gpus=1, threads=2), "waiting for 9 parameter-server slots with a GPU and 2 threads: the cluster"),
        (
            3,
            Resources(gpus=0, threads=2),
            "waiting for 3 parameter-server slots on the CPU with 2 threads: the",
        ),
        (1, Resources(threads=5), "waiting for 1 parameter-server slot with 5 threads: the cluster has 0 in total"),
    ],
)
def test_the_reason_names_the_resources(wanted: int, own: Resources, expected: str) -> None:
    nodes = [alive(make_node("server-0", SERVER, 9, gpus=4))]
    first = place({SERVER: 3}, nodes, [], {SERVER: ON_GPU})
    assert isinstance(first, GangPlan)
    outcome = place({SERVER: wanted}, nodes, first.workers, {SERVER: own})
    assert reason(outcome).startswith(expected)
    assert isinstance(outcome, Waiting)
    assert outcome.lasting == expected.partition(":")[0]


def test_roles_that_share_a_machines_gpus_get_a_reason_that_says_so() -> None:
    nodes = [alive(make_node(f"{role}-0", role, 9, gpus=2)) for role in (SERVER, TRAINER)]
    assert reason(place({SERVER: 1, TRAINER: 2}, nodes, [], {SERVER: ON_GPU})) == (
        "waiting for 1 parameter-server slot with a GPU and 2 trainer slots: they share machines that hold 2 in total; "
        "add nodes or ask for fewer"
    )


@pytest.mark.parametrize(
    ("cores", "cpu_slots", "threads", "expected"),
    [(8, 8, None, (8, 1)), (8, 8, 3, (2, 3)), (8, 2, None, (2, 4)), (8, 2, 5, (1, 5)), (8, 8, 9, (0, 9))],
    ids=["a share has a core", "3 shares each", "a share has 4 cores", "5 cores are 2 shares", "more than all"],
)
def test_threads_take_their_share_of_the_cores(
    cores: int, cpu_slots: int, threads: int | None, expected: tuple[int, int]
) -> None:
    nodes = [alive(make_node("trainer-0", TRAINER, 9, cores=cores, cpu_slots=cpu_slots))]
    own = Resources(threads=threads)
    room = capacity(TRAINER, nodes, (), own)
    assert room == expected[0]
    plan = place({TRAINER: room}, nodes, [], {TRAINER: own})
    assert isinstance(plan, GangPlan)
    assert {worker.threads for worker in plan.workers} == ({expected[1]} if room else set())
    assert capacity(TRAINER, nodes, plan.workers, own) == 0


def test_a_server_that_computes_gets_the_threads_of_a_share_and_leaves_trainers_theirs() -> None:
    nodes = [alive(make_node(f"{role}-0", role, 16, cores=8, cpu_slots=2)) for role in (SERVER, TRAINER)]
    busy = {SERVER: Resources(busy=True)}
    plan = place({SERVER: 2, TRAINER: 2}, nodes, [], busy)
    assert isinstance(plan, GangPlan)
    assert [worker.threads for worker in plan.workers] == [4, 4, 4, 4]
    assert capacity(SERVER, nodes, plan.workers) == 0
    waiting = place({SERVER: 2, TRAINER: 2}, nodes, [])
    assert isinstance(waiting, GangPlan)
    assert [worker.threads for worker in waiting.workers] == [1, 1, 4, 4]
    assert capacity(SERVER, nodes, waiting.workers) == 14
    assert capacity(SERVER, nodes, waiting.workers, busy[SERVER]) == 1


def test_workers_with_many_threads_are_seated_before_others_fill_the_gaps() -> None:
    nodes = [
        alive(make_node(f"{role}-{boot}", role, 4, boot=boot, cores=4))
        for role in (STAGE, OBSERVER)
        for boot in ("m0", "m1")
    ]
    plan = place({STAGE: 4, OBSERVER: 1}, nodes, [], {OBSERVER: Resources(threads=4)})
    assert isinstance(plan, GangPlan)
    assert len({worker.node for worker in plan.workers if worker.role is STAGE}) == 1


def test_a_gpu_is_shared_by_as_many_as_all_nodes_of_its_machine_allow_and_free_ones_come_first() -> None:
    nodes = [alive(make_node(name, TRAINER, 9, gpus=2, workers_per_gpu=2)) for name in ("a", "b")]
    first = place({TRAINER: 2}, nodes, [])
    assert isinstance(first, GangPlan)
    assert sorted(worker.gpu or "" for worker in first.workers) == ["GPU-m0-0", "GPU-m0-1"]
    assert capacity(TRAINER, nodes, first.workers) == 2
    older = [nodes[0], alive(make_node("b", TRAINER, 9, gpus=2))]
    assert capacity(TRAINER, older) == 2


@pytest.mark.parametrize("example", sorted(Path("examples").glob("*.json")), ids=lambda path: path.stem)
def test_one_gpu_for_two_workers_is_enough_for_every_example(example: Path) -> None:
    on_gpu = {TRAINER, STAGE}  # as in compose.gpu.yaml
    nodes = [alive(make_node(f"{role}-0", role, 9, gpus=int(role in on_gpu), workers_per_gpu=2)) for role in Role]
    fields = load().check_request(JobRequest.model_validate_json(example.read_text()))
    plan = place(fields["roles"], nodes, [], fields["resources"])
    assert isinstance(plan, GangPlan), plan
    assert {worker.role for worker in plan.workers if worker.gpu} == on_gpu & {worker.role for worker in plan.workers}
