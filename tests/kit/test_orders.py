"""The torch-free orders against torch's own."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from rolecall.kit.orders import planned_order
from rolecall.kit.pipelining import Task, bubble
from rolecall.kit.schedules import SCHEDULES, ScheduleName


def flat(actions: Iterable[Any]) -> Iterator[Task]:
    for action in actions:
        if action is not None and action.sub_actions:
            yield from flat(action.sub_actions)
        elif action is not None:
            yield Task(action.stage_index, action.computation_type.value, action.microbatch_index)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in {"GPipe", "1F1B"}])
def test_multi_stage_schedules_are_planned_as_torch_does(name: ScheduleName) -> None:
    rules = SCHEDULES[name]
    compared = 0
    for ranks, counts in {2: (1, 2, 3, 6, 8, 21), 3: (1, 2, 3, 6, 8), 4: (2, 6, 8), 8: (8,)}.items():
        for virtual in {2, min(3, rules.virtual_stages[1])}:
            for micro_batches in counts:
                if rules.micro_batches.is_valid(micro_batches, ranks, ranks * virtual):
                    theirs = get_schedule_ops(name, ranks, micro_batches, virtual)
                    assert planned_order(name, ranks, micro_batches, virtual) == [list(flat(own)) for own in theirs]
                    compared += 1
    assert compared > 5


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_plan_deadlocks_and_more_micro_batches_idle_less(name: ScheduleName) -> None:
    virtual = SCHEDULES[name].default_virtual_stages
    few, many = (bubble(planned_order(name, 4, count, virtual)) for count in (8, 64))
    assert 0 <= many < few < 1
