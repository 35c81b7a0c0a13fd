"""The slots that a worker counts for, and the pools of a machine whose nodes disagree.

`test_placement` tests the search for seats.
"""

from hypothesis import given
from hypothesis import strategies as st

from rolecall.master.seats import Need, Offers, least_slots, pools_of, slots_taken
from rolecall.spec.node import NodeSpec
from rolecall.spec.plan import WorkerPlan
from rolecall.spec.resources import Resources
from rolecall.spec.role import Role

from .harness import make_node

SERVER, TRAINER = Role.PARAMETER_SERVER, Role.TRAINER


def placed(spec: NodeSpec, need: Need) -> WorkerPlan:
    """Such a worker on this node, on its first GPU if it takes one."""
    gpu = spec.machine.gpus[0].uuid if need.takes_gpu(spec) else None
    return WorkerPlan(
        rank=0, role=need.role, role_rank=0, node=spec.name, threads=need.threads_on(spec.machine), gpu=gpu
    )


@given(
    st.sampled_from([SERVER, TRAINER]),
    st.integers(1, 8),
    st.integers(1, 16),
    st.integers(0, 1),
    st.builds(Resources, gpus=st.sampled_from([None, 0]), threads=st.none() | st.integers(1, 8), busy=st.booleans()),
)
def test_a_worker_is_announced_with_the_slots_that_it_takes(
    role: Role, cores: int, cpu_slots: int, gpus: int, resources: Resources
) -> None:
    """Otherwise, a job within its token's limit would exceed it once placed, or never be placed."""
    spec = make_node("n", role, cores=cores, cpu_slots=cpu_slots, gpus=gpus)
    need = Need.of(role, resources)
    if need.threads is None or need.threads <= cores:
        assert least_slots(need, [spec]) == slots_taken(spec, placed(spec, need)) >= 1


def test_the_least_slots_are_those_of_the_best_node_that_can_have_the_worker() -> None:
    wide = make_node("wide", TRAINER, cores=8, cpu_slots=2)
    narrow = make_node("narrow", TRAINER, cores=4, cpu_slots=4)
    small = make_node("small", TRAINER, cores=2, cpu_slots=1)
    four = Need(TRAINER, threads=4)
    assert least_slots(four, [narrow]) == 4
    assert least_slots(four, [narrow, wide]) == 1
    assert least_slots(Need(TRAINER, threads=3), [narrow, small]) == 3, "the small one has too few cores"
    assert least_slots(four, [small]) == 1
    assert least_slots(Need(TRAINER, gpus=1, threads=4), [narrow]) == 1, "no node has a GPU"
    assert least_slots(four, [make_node("server", SERVER, cores=4)]) == 1


def test_nodes_of_one_machine_that_disagree_have_the_most_cpu_slots_and_the_fewest_workers_on_a_gpu() -> None:
    specs = [
        make_node("a", TRAINER, gpus=1, cpu_slots=2, workers_per_gpu=3),
        make_node("b", TRAINER, gpus=1, cpu_slots=4, workers_per_gpu=1),
        make_node("c", TRAINER, gpus=1, cpu_slots=1, workers_per_gpu=2),
    ]
    for order in (specs, specs[::-1]):
        offers = Offers(order)
        (gpu,) = pools_of(specs[0], on_gpu=True)
        (cpu,) = pools_of(specs[0], on_gpu=False)
        assert offers.gpu_places == {gpu: 1}
        assert offers.pool_sizes[cpu] == 4 * 8, "eighths of a share"


def test_a_node_without_gpus_has_no_pool_for_a_worker_on_one() -> None:
    assert pools_of(make_node("a", TRAINER), on_gpu=True) == ()
    assert len(set(pools_of(make_node("a", TRAINER, gpus=2), on_gpu=True))) == 2
