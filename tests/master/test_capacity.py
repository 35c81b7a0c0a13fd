"""Resources that no live node of a role has."""

import pytest

from rolecall.master.capacity import lacking
from rolecall.spec.resources import Resources
from rolecall.spec.role import Role

from .harness import alive, make_node

NODES = [
    alive(make_node("trainer-0", Role.TRAINER, cores=64)),
    alive(make_node("trainer-1", Role.TRAINER, cores=8, gpus=1)),
    alive(make_node("trainer-2", Role.TRAINER, cores=96, gpus=8), alive=False),
    alive(make_node("server-0", Role.PARAMETER_SERVER, cores=1)),
]


@pytest.mark.parametrize(
    ("role", "own", "expected"),
    [
        (Role.TRAINER, Resources(gpus=1, threads=8), None),
        (Role.TRAINER, Resources(threads=64), None),
        (Role.STAGE, Resources(gpus=1, threads=999), None),
        (Role.PARAMETER_SERVER, Resources(gpus=0, threads=1, busy=True), None),
        (Role.TRAINER, Resources(threads=65), ("threads", "no live trainer node has more than 64 cores", "1 to 64")),
        (
            Role.TRAINER,
            Resources(gpus=1, threads=64),
            ("threads", "no live trainer node with a GPU has more than 8 cores", "1 to 8"),
        ),
        (
            Role.PARAMETER_SERVER,
            Resources(gpus=1, threads=2),
            (
                "gpus",
                "no live parameter-server node has a GPU",
                "0, or start a node of the role parameter-server that sees a GPU",
            ),
        ),
        (
            Role.PARAMETER_SERVER,
            Resources(threads=2),
            ("threads", "no live parameter-server node has more than 1 core", "1 to 1"),
        ),
    ],
)
def test_each_node_counts_by_itself(role: Role, own: Resources, expected: tuple[str, str, str] | None) -> None:
    found = [(one["field"], one["message"], one["legal"]) for one in lacking({role: own}, NODES)]
    assert found == ([] if expected is None else [(f"roles.{role}.{expected[0]}", *expected[1:])])
