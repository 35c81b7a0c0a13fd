"""Checks that all workers read the same input. (Each node reads a job's files separately.)"""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from rolecall.runtime.context import worker_name
from rolecall.spec.errors import InputError
from rolecall.spec.role import Role


def require_same_in_group(fingerprint: str, role: Role, what: str) -> None:
    """Raises `InputError` on all workers unless their fingerprints are equal.

    A collective of the default process group, which must consist of the workers of `role`.
    """
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, fingerprint)
    require_same({worker_name(role, rank): one for rank, one in enumerate(found)}, what)


def require_same(found: Mapping[str, object], what: str) -> None:
    """Raises `InputError` that names the workers whose value differs from the first worker's."""
    first, expected = next(iter(found.items()))
    different = [name for name, one in found.items() if one != expected]
    if different:
        raise InputError(
            f"{', '.join(different)} and {first} read different {what}; the files must be the same on every node"
        )
