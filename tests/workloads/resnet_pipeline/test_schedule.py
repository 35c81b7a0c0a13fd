"""1F1B: every micro-batch once each way, in order, without a wait that nobody ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.workloads.resnet_pipeline.schedule import one_forward_one_backward


def test_as_in_the_paper() -> None:
    """Figure 4 of Narayanan et al. (2021), its first four micro-batches, on the first and the last of two stages."""
    first = "".join(f"{kind[0]}{number}" for kind, number in one_forward_one_backward(0, 2, 4))
    last = "".join(f"{kind[0]}{number}" for kind, number in one_forward_one_backward(1, 2, 4))
    assert first == "f0f1b0f2b1f3b2b3"
    assert last == "f0b0f1b1f2b2f3b3"


@given(st.integers(1, 8), st.integers(1, 12))
def test_every_stage_ends_and_holds_no_more_than_the_stages_behind_it(stages: int, micro_batches: int) -> None:
    queues = [list(one_forward_one_backward(place, stages, micro_batches)) for place in range(stages)]
    done: set[tuple[str, int, int]] = set()

    def ready(place: int, kind: str, number: int) -> bool:
        if kind == "forward":
            return place == 0 or ("forward", place - 1, number) in done
        return ("forward", place, number) in done and (place == stages - 1 or ("backward", place + 1, number) in done)

    while any(queues):
        runnable = [place for place in range(stages) if queues[place] and ready(place, *queues[place][0])]
        assert runnable, "every stage waits for another"
        for place in runnable:
            kind, number = queues[place].pop(0)
            done.add((kind, place, number))
            held = sum(
                (("forward", place, one) in done) - (("backward", place, one) in done) for one in range(micro_batches)
            )
            assert held <= stages - place
    assert len(done) == 2 * stages * micro_batches


@pytest.mark.parametrize("place", range(3))
def test_both_kinds_take_the_micro_batches_in_order(place: int) -> None:
    actions = list(one_forward_one_backward(place, 3, 5))
    for kind in ("forward", "backward"):
        assert [number for one, number in actions if one == kind] == list(range(5))
