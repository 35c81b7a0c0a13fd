"""Builds a job's policy, and derives the seeds of all random numbers from the job's seed, a purpose and a position.

So random numbers don't depend on earlier ones, and a resumed job gets the same as an uninterrupted one.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import torch

from rolecall.kit.builders import check_builder
from rolecall.workloads.reinforce.model import Policy
from rolecall.workloads.reinforce.params import Custom, Params


class RandomStream(IntEnum):
    """The purposes of seeds."""

    WEIGHTS = 0
    ENVIRONMENTS = 1
    ACTIONS = 2
    MINIBATCHES = 3


def seed_of(seed: int, stream: RandomStream, *position: int) -> int:
    """The seed of a stream at a position, such as (observer, update); in [0, 2^63)."""
    return seeds_of(seed, stream, *position, count=1)[0]


def seeds_of(seed: int, stream: RandomStream, *position: int, count: int) -> list[int]:
    """`count` independent seeds for one position."""
    words = np.random.SeedSequence([seed, int(stream), *position]).generate_state(count, np.uint64)
    return [int(word >> np.uint64(1)) for word in words]


def new_policy(params: Params, spaces: dict[str, Any]) -> Policy:
    """The policy with its initial weights, on the CPU; the same in every process."""
    if isinstance(params.policy, Custom):
        check_builder(params.policy)  # `model.py`, which imports it, is standalone and can't check
    torch.manual_seed(seed_of(params.seed, RandomStream.WEIGHTS))
    return Policy(description(params, spaces))


def description(params: Params, spaces: dict[str, Any]) -> dict[str, Any]:
    """The `description` of a `model.Policy`."""
    return {
        **spaces,
        "policy": params.policy.model_dump(mode="json"),
        "normalize": params.normalize_observations,
        "precision": params.precision,
    }
