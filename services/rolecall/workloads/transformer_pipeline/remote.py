# pyright: standard
"""A rank's virtual stages, and the schedule that runs them and sends tensors between the ranks."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from rolecall.kit import InputError
from rolecall.kit.builders import shorten_error
from rolecall.kit.csv_schedules import CsvSchedule
from rolecall.kit.declarations import IN_FLIGHT
from rolecall.kit.grid import Grid
from rolecall.kit.meter import Meter, device_clock
from rolecall.kit.own_schedule import OwnSchedule
from rolecall.kit.pipelining import LOSS, Task, fill_and_drain, most_in_flight, one_forward_one_backward
from rolecall.kit.precision import autocast, weight_dtype
from rolecall.kit.schedules import Placement, rank_of, stages_of
from rolecall.kit.stages import compute_tasks, manual_stages, own_runtime, skip_p2p_with_self, traced_stages
from rolecall.kit.text.batches import IGNORED
from rolecall.kit.worker import Timeline, measurements
from rolecall.workloads.transformer_pipeline.build import SplitCustomModel, SplitDecoder, SplitModel
from rolecall.workloads.transformer_pipeline.check import check_ranks
from rolecall.workloads.transformer_pipeline.params import Params

_NOT_OF_THE_MODEL = (InputError, MemoryError, torch.OutOfMemoryError)
"""Errors of tracing that don't mean that the model can't be traced."""


def sum_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The summed cross-entropy of logits [b, t, vocabulary] and targets [b, t], in float32 or float64."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def _with_contiguous_gradients(x: Tensor) -> Tensor:
    """A stage's inputs, whose gradients can be sent: split backward passes leave them with the strides of views."""
    if x.requires_grad:
        x = x.view_as(x)  # Torch receives into the same tensors again, where hooks would pile up.
        x.register_hook(lambda gradient: gradient.contiguous())
    return x


class Pipeline:
    """One rank's part of a replica's pipeline."""

    def __init__(self, params: Params, vocabulary: int, grid: Grid, timeline: Timeline | None = None) -> None:
        """Raises `InputError` if a custom model or the cuts can't be used."""
        self.grid = grid
        self.meter = Meter(device_clock(grid.device), timeline)
        self.dtype = weight_dtype(params.precision)
        self._params = params
        self._own: CsvSchedule | None = None
        if isinstance(params.schedule, OwnSchedule):
            self._own = params.schedule.load()
            params.check_own_schedule(self._own)
            check_ranks(self._own, grid.ranks)
        limits = self._own or params.rules
        assert limits is not None
        self._placement: Placement = limits.placement
        self.stages = grid.ranks * params.stages_per_rank
        """The virtual stages of all ranks."""
        self.stage_indices = stages_of(grid.rank, grid.ranks, params.stages_per_rank, self._placement)
        model = self._split_model(vocabulary)
        self.shape = model.shape
        stages = self._traced(model) if params.split == "tracer" else self._manual(model)
        for stage in stages:
            stage.submod.register_forward_pre_hook(lambda _part, inputs: _with_contiguous_gradients(*inputs))
            stage.submod.register_forward_hook(lambda _part, _inputs, outputs: self._as_message(outputs))
        self.model_parts: dict[int, nn.Module] = {stage.stage_index: stage.submod for stage in stages}
        self._schedule = self._make_schedule(stages)
        measurements.set(IN_FLIGHT, most_in_flight(self.order[grid.rank]))

    @property
    def last_rank(self) -> int:
        return self.rank_of(self.stages - 1)

    @property
    def order(self) -> list[list[Task]]:
        """The schedule: the tasks of each rank, in order."""
        ranks, micro_batches = self.grid.ranks, self._params.micro_batches
        if self._own is not None:
            return [list(tasks) for tasks in self._own.order]
        match self._params.schedule:
            case "GPipe":
                return fill_and_drain(ranks, micro_batches)
            case "1F1B":
                return one_forward_one_backward(ranks, micro_batches)
            case _:
                return [list(compute_tasks(self._schedule.pipeline_order[rank])) for rank in range(ranks)]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's parameters by their names in the whole model."""
        for part in self.model_parts.values():
            yield from part.named_parameters()

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Compute the gradients of this replica's contribution to the global batch's mean loss.

        `tokens` and `targets` are the replica's share [sequences, context] int64, for the first and the last stage.
        Returns the micro-batches' contributions to the mean loss [micro_batches], float64, on the rank with the last
        stage, 0 on other ranks.
        """
        losses: list[Tensor] = []
        inputs = (tokens,) if 0 in self.model_parts else ()
        wanted = {"target": targets, "losses": losses} if self.stages - 1 in self.model_parts else {}
        with self.meter.step(), self._autocast():
            self._schedule.step(*inputs, **wanted, return_outputs=False)
        if not losses:
            return torch.zeros(self._params.micro_batches, dtype=torch.float64, device=self.grid.device)
        return torch.stack([loss.detach().double() for loss in losses])

    @torch.no_grad()
    def forward(self, micro_batches: Iterable[Tensor], on_logits: Callable[[int, Tensor], None]) -> None:
        """Forward passes of tokens [b, t] through all stages, without gradients.

        All ranks pass micro-batches of the same shapes. The last stage's rank calls `on_logits` with each micro-batch's
        number and logits. A rank completes a micro-batch in all its stages before it starts the next one, so that two
        ranks never send to each other at the same time.
        """
        self._set_training(False)
        pending_send: dist.Work | None = None
        for number, tokens in enumerate(micro_batches):
            pending_send = self._forward_micro_batch(number, tokens, on_logits, pending_send)
        if pending_send is not None:
            pending_send.wait()
        self._set_training(True)

    def _forward_micro_batch(
        self, number: int, tokens: Tensor, on_logits: Callable[[int, Tensor], None], pending_send: dist.Work | None
    ) -> dist.Work | None:
        """Pass one micro-batch through this rank's stages. Returns the pending send, if any."""
        x = tokens
        for index, part in self.model_parts.items():
            before, after = self.rank_of(index - 1), self.rank_of(index + 1)
            if index > 0 and before != self.grid.rank:
                x = torch.empty(*tokens.shape, self._widths[index - 1], dtype=self.dtype, device=self.grid.device)
                dist.recv(x, group=self.grid.pipeline_group, group_src=before)
            with self._autocast():
                x = part(x)
            if index == self.stages - 1:
                on_logits(number, x)
            elif after != self.grid.rank:
                if pending_send is not None:
                    pending_send.wait()
                pending_send = dist.isend(x, group=self.grid.pipeline_group, group_dst=after)
        return pending_send

    def rank_of(self, stage: int) -> int:
        return rank_of(stage, self.grid.ranks, self._placement)

    def _set_training(self, mode: bool) -> None:
        for part in self.model_parts.values():
            part.train(mode)

    def _autocast(self) -> torch.autocast:
        return autocast(self._params.precision, self.grid.device)

    def _as_message(self, outputs: Tensor) -> Tensor:
        """A stage's outputs, contiguous and with the data type of the weights, also if autocast computed them in
        bfloat16."""
        outputs = outputs.to(self.dtype)
        # Schedules that split the backward pass detach outputs in place, which views don't allow.
        return outputs.clone(memory_format=torch.contiguous_format) if outputs._is_view() else outputs.contiguous()

    def _split_model(self, vocabulary: int) -> SplitModel:
        params = self._params
        if (own := params.whole_model) is not None:
            return SplitCustomModel(params, own, vocabulary, self.stages, self.grid.device)
        return SplitDecoder(params, vocabulary, self.stages, self.grid.device)

    def _manual(self, model: SplitModel) -> list[Any]:
        self._widths = model.widths()
        parts = {index: model.part(index) for index in self.stage_indices}
        return manual_stages(parts, self._widths, self._micro_batch, self.grid)

    def _traced(self, model: SplitModel) -> list[Any]:
        whole = model.whole()
        try:
            stages, self._widths = traced_stages(
                whole, model.split_points, self.stage_indices, self._micro_batch, self.grid, count=self.stages
            )
        except Exception as error:
            if self._params.model is None or isinstance(error, _NOT_OF_THE_MODEL):
                raise
            # Custom code may raise anything, and torch's tracer has no class of errors of its own.
            reason = shorten_error(f"{type(error).__name__}: {error}")
            raise InputError(
                f"split: tracer can't trace the model of {self._params.model.builder}; use split: manual: {reason}"
            ) from error
        return stages

    @property
    def _micro_batch(self) -> tuple[int, int]:
        return self._params.micro_batch, self._params.context

    def _make_schedule(self, stages: list[Any]) -> Any:
        """Torch's schedule with its gradient scaling disabled: the loss is already scaled for the global batch."""
        for stage in stages:
            if self._placement == "v":
                skip_p2p_with_self(stage, self.grid.rank)
            self.meter.watch(stage)
        tokens = self._params.batch_size * self._params.context
        loss = self.meter.timed(lambda logits, targets: sum_loss(logits, targets) / tokens, LOSS)
        if self._own is not None:
            return own_runtime(self._own, stages, loss)
        kind = get_schedule_class(str(self._params.schedule))
        given = cast(Any, stages if issubclass(kind, PipelineScheduleMulti) else stages[0])
        return kind(given, self._params.micro_batches, loss_fn=loss, scale_grads=False)
