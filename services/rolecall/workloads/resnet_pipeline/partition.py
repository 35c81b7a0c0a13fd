"""Where to cut a chain of blocks so that the slowest stage is as fast as it can be. Torch-free."""

from collections.abc import Sequence
from itertools import accumulate

from rolecall.spec.errors import InputError


def places(cuts: Sequence[str], names: Sequence[str]) -> list[int]:
    """The places of the blocks that begin the later stages; raises `InputError` for cuts that the model can't have."""
    if unknown := [cut for cut in cuts if cut not in names[1:]]:
        raise InputError(
            f"cuts: the model has no block {', '.join(unknown)} to cut before; legal: {', '.join(names[1:])}"
        )
    found = [names.index(cut) for cut in cuts]
    if found != sorted(set(found)):
        raise InputError(f"cuts must follow the model's order, each once: {', '.join(names[1:])}")
    return found


def best_cuts(costs: Sequence[Sequence[float]]) -> list[int]:
    """The first block of every stage but the first; `costs[s][b]` is what block `b` costs on stage `s`.

    Every stage gets one block or more. Among equally good partitions it prefers early cuts. An optimal partition of a
    chain, by dynamic programming over (stage, first blocks).
    """
    stages, blocks = len(costs), len(costs[0])
    before = [list(accumulate(of_stage, initial=0.0)) for of_stage in costs]
    # slowest[e] is the least possible cost of the slowest stage when the stages so far share the first e blocks.
    slowest = before[0]
    chosen: list[list[int]] = []
    for stage in range(1, stages):
        choices = [_best_cut(slowest, before[stage], stage, end) for end in range(blocks + 1)]
        slowest = [cost for cost, _ in choices]
        chosen.append([cut for _, cut in choices])
    return _walk_back(chosen, blocks)


def _best_cut(slowest: Sequence[float], before: Sequence[float], stage: int, end: int) -> tuple[float, int]:
    """The best place for `stage` to begin if it ends with block `end - 1`: the slowest stage's cost, and the place."""
    options = [(max(slowest[cut], before[end] - before[cut]), cut) for cut in range(stage, end)]
    return min(options, default=(float("inf"), stage))


def _walk_back(chosen: list[list[int]], blocks: int) -> list[int]:
    cuts: list[int] = []
    for choices in reversed(chosen):
        cuts.append(choices[cuts[-1] if cuts else blocks])
    return cuts[::-1]
