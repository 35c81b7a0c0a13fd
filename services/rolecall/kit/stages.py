"""Torch's pipeline stages of the parts of a model, or of its trace, and torch's schedules of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, SplitPoint, pipeline
from torch.distributed.pipelining.schedules import (  # No public name has them.
    _Action,  # pyright: ignore[reportPrivateUsage]
    _PipelineScheduleRuntime,  # pyright: ignore[reportPrivateUsage]
)

from rolecall.kit.csv_schedules import CsvSchedule
from rolecall.kit.grid import Grid
from rolecall.kit.pipelining import COSTS, Task
from rolecall.spec.errors import InputError
from rolecall.spec.numbers import counted


def manual_stages(
    parts: Mapping[int, nn.Module],
    widths: Sequence[int],
    micro_batch: tuple[int, int],
    grid: Grid,
) -> list[PipelineStage]:
    """Torch's stages for this rank's `parts`, keyed by stage index; a micro-batch is [sequences, context].

    Passes input and output shapes explicitly; `widths` has the width of every stage's outputs. Otherwise torch infers
    shapes by a forward pass, which in some versions (2.11) advances the random state for dropout, so that a resumed
    training would differ.
    """
    stages: list[PipelineStage] = []
    for index, part in parts.items():
        dtype = next(part.parameters()).dtype
        inputs = torch.empty(micro_batch, dtype=torch.int64, device="meta")
        if index > 0:
            inputs = _activations(micro_batch, widths[index - 1], dtype)
        stage = PipelineStage(
            part,
            index,
            len(widths),
            grid.device,
            input_args=inputs,
            output_args=_activations(micro_batch, widths[index], dtype),
            group=grid.pipeline_group,
        )
        stages.append(stage)
    return stages


def _activations(micro_batch: tuple[int, int], width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(*micro_batch, width, dtype=dtype, device="meta", requires_grad=True)


def traced_stages(
    whole: nn.Module,
    points: dict[str, SplitPoint],
    stage_indices: Sequence[int],
    micro_batch: tuple[int, int],
    grid: Grid,
    *,
    count: int,
) -> tuple[list[Any], list[int]]:
    """Torch's stages `stage_indices` from a trace of the whole model, and the width of every stage's outputs.

    Without `points`, the model's calls of `pipe_split` divide the trace. The whole model must temporarily fit in
    memory. The trace is specialized to tokens of the shape `micro_batch`. Raises `InputError` if the trace has other
    data than one tensor [sequences, context, width] between stages, or not `count` stages.
    """
    tokens = torch.zeros(micro_batch, dtype=torch.int64, device=grid.device)
    pipe = pipeline(whole, mb_args=(tokens,), split_spec=points or None)
    if pipe.num_stages != count:
        if points:
            raise InputError(
                "cuts: the model has calls of pipe_split() of its own; remove them, or set cuts: pipe_split"
            )
        raise InputError(
            f"cuts: pipe_split: the model calls pipe_split() {counted(pipe.num_stages - 1, 'time')} for "
            f"{count} virtual stages; it needs {count - 1}, one between two stages: change the model, "
            "or the number of stages"
        )
    widths = [_traced_width(pipe.get_stage_module(index), micro_batch) for index in range(pipe.num_stages)]
    for index in stage_indices:
        _receive_contiguous(pipe.get_stage_module(index))
    return [pipe.build_stage(index, grid.device, grid.pipeline_group) for index in stage_indices], widths


def _traced_width(stage: Any, micro_batch: tuple[int, int]) -> int:
    outputs = next(node for node in stage.graph.nodes if node.op == "output").all_input_nodes
    inputs = [node for node in stage.graph.nodes if node.op == "placeholder"]
    shape = outputs[0].meta["val"].shape
    if len(inputs) != 1 or len(outputs) != 1 or tuple(shape[:-1]) != micro_batch:
        raise InputError(
            "cuts: split: tracer needs one tensor [b, t, width] between stages; skip connections across a cut are not "
            "supported: choose other cuts"
        )
    return shape[-1]


def _receive_contiguous(stage: Any) -> None:
    """Give a traced part contiguous buffers for what it receives, since torch sends no other tensors.

    Views in the trace may depend on the strides of the inputs, so the part copies received activations to these.
    """
    (given,) = (node for node in stage.graph.nodes if node.op == "placeholder")
    (returned,) = next(node for node in stage.graph.nodes if node.op == "output").all_input_nodes
    traced = given.meta["val"]
    for node in (given, returned):
        node.meta["val"] = node.meta["val"].contiguous()  # torch makes the buffers by these
    if not traced.is_contiguous():
        strides = torch.empty_like(traced, device="meta").stride()  # without overlaps

        def restore_strides(_part: nn.Module, inputs: tuple[Tensor]) -> Tensor:
            return inputs[0].new_empty_strided(inputs[0].shape, strides).copy_(inputs[0])

        stage.register_forward_pre_hook(restore_strides)


def own_runtime(own: CsvSchedule, stages: list[Any], loss: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Torch's runtime for schedules, with one that a user wrote."""
    runtime = _PipelineScheduleRuntime(stages, own.micro_batches, loss_fn=loss, scale_grads=False)
    runtime.pipeline_order = {rank: [_Action.from_str(cell) for cell in cells] for rank, cells in enumerate(own.cells)}
    runtime._prepare_schedule_with_comms(runtime.pipeline_order)  # pyright: ignore[reportPrivateUsage]
    return runtime


def skip_p2p_with_self(stage: Any, rank: int) -> None:
    """Disable the P2P warm-up of a stage with stages on the same rank.

    Before its first step a stage exchanges tensors with its neighbors. In a V placement a neighbor may be on the same
    rank, and torch (2.11; with traced stages 2.14, too) would send to itself, which Gloo does not support.
    """
    neighbor_ops = stage._get_init_p2p_neighbors_ops
    stage._get_init_p2p_neighbors_ops = lambda: [one for one in neighbor_ops() if one.group_peer != rank]


def compute_tasks(actions: Iterable[Any]) -> Iterator[Task]:
    """The computations among torch's schedule actions."""
    for action in actions:
        if action is None:
            continue
        if action.sub_actions:
            yield from compute_tasks(action.sub_actions)
        elif action.computation_type.value in COSTS:
            yield Task(action.stage_index, action.computation_type.value, action.microbatch_index)
