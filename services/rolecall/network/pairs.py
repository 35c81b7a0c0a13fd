"""Pairs of nodes: the order of their measurements, their speed, and the nodes whose calls stall. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

Pair = tuple[str, str]
_STALLS = 2
"""Minimum stalls with different nodes to blame a node: a single one may be the other node's."""


class Speed(NamedTuple):
    """The measurements of one pair."""

    ping_ms: float
    """The median round trip of a small call."""
    sent_mb_per_s: float
    """The best rate of a large tensor from the caller to the other."""
    received_mb_per_s: float
    """The same in the other direction."""


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Every pair of `count` nodes once, in the minimum number of rounds; no node is twice in a round.

    The circle method of round-robin tournaments (Kirkman, 1847): one node stays, the others move on by one place.
    """
    seats = [*range(count), *([None] if count % 2 else [])]
    found: list[list[tuple[int, int]]] = []
    for _ in range(len(seats) - 1):
        opposite = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def blamed(stalls: Sequence[Pair]) -> dict[str, list[str]]:
    """The nodes that cause the stalls, each with the nodes of its stalled calls.

    The node with the most stalls is blamed for all of its own, and the rest is examined again. So a good node that was
    measured with two bad ones is cleared as soon as these are measured with others.
    """
    guilty: dict[str, list[str]] = {}
    left: list[Pair] = list(stalls)
    while left:
        node, count = Counter(node for pair in left for node in pair).most_common(1)[0]
        if count < _STALLS:
            break
        guilty[node] = [one if other == node else other for one, other in left if node in {one, other}]
        left = [pair for pair in left if node not in pair]
    return guilty
