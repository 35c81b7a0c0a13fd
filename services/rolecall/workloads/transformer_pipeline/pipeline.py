"""A rank's virtual stages, and the schedule that runs them in step with the other ranks'."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from rolecall.kit.pipelining import COSTS, Task, fill_and_drain, one_forward_one_backward
from rolecall.kit.precision import autocast, weight_dtype
from rolecall.workloads.transformer_pipeline.grid import Grid
from rolecall.workloads.transformer_pipeline.layers import own_layers
from rolecall.workloads.transformer_pipeline.meter import GpuClock, HostClock, Meter
from rolecall.workloads.transformer_pipeline.model import Decoder, Shape
from rolecall.workloads.transformer_pipeline.params import Params
from rolecall.workloads.transformer_pipeline.schedules import rank_of, stages_of
from rolecall.workloads.transformer_pipeline.sequences import IGNORED
from rolecall.workloads.transformer_pipeline.split import build, head_cost, layer_cuts, manual_stages, traced_stages


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross entropies of logits [b, t, vocabulary] and targets [b, t], added up in float32 or better."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


class Pipeline:
    """One replica's pipeline as one of its ranks sees it."""

    def __init__(self, params: Params, shape: Shape, grid: Grid) -> None:
        self.grid = grid
        self.meter = Meter(GpuClock() if grid.device.type == "cuda" else HostClock())
        self.dtype = weight_dtype(params.precision)
        self._params = params
        self._shape = shape
        self._stages = grid.ranks * params.stages_per_rank
        self.make_layer = own_layers(params)
        self.cuts = layer_cuts(shape.layers, self._stages, head_cost(shape, self.make_layer))
        self.held = stages_of(grid.rank, grid.ranks, params.stages_per_rank, params.rules.placement)
        stages = self._traced() if params.split == "tracer" else self._manual()
        self.parts: dict[int, nn.Module] = {stage.stage_index: stage.submod for stage in stages}
        self._schedule = self._scheduled(stages)

    @property
    def first(self) -> bool:
        """Whether tokens come in here."""
        return 0 in self.parts

    @property
    def last(self) -> bool:
        """Whether logits come out here."""
        return self._stages - 1 in self.parts

    @property
    def last_rank(self) -> int:
        """The pipeline rank where logits come out."""
        return self.rank_of(self._stages - 1)

    @property
    def order(self) -> list[list[Task]]:
        """What the schedule has each rank do."""
        ranks, micro_batches = self.grid.ranks, self._params.micro_batches
        match self._params.schedule:
            case "GPipe":
                return fill_and_drain(ranks, micro_batches)
            case "1F1B":
                return one_forward_one_backward(ranks, micro_batches)
            case _:
                return [list(_tasks(self._schedule.pipeline_order[rank])) for rank in range(ranks)]

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's weights by the names that they have in the whole decoder."""
        for part in self.parts.values():
            yield from part.named_parameters()

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Fill all gradients with this replica's part of the global batch's mean loss.

        Both are the replica's share [sequences, context] int64 on every rank that needs it. Gives this rank's part of
        the mean loss, float64: that of the replica on the rank with the last stage, 0 on the others.
        """
        losses: list[Tensor] = []
        inputs = (tokens,) if self.first else ()
        wanted = {"target": targets, "losses": losses} if self.last else {}
        nothing = torch.zeros((), dtype=torch.float64, device=self.grid.device)
        with self.meter.step(), self._autocast():
            self._schedule.step(*inputs, **wanted, return_outputs=False)
        return sum((loss.detach().double() for loss in losses), start=nothing)

    @torch.no_grad()
    def forward(self, micro_batches: Iterable[Tensor], finish: Callable[[int, Tensor], None]) -> None:
        """Pass tokens [b, t] through all stages without gradients; every rank gives micro-batches of the same shapes.

        On the last stage's rank `finish` takes each micro-batch's number and logits. A micro-batch goes through all
        stages before a rank begins the next, so that no two ranks ever send to each other at once.
        """
        self._train(False)
        sending: dist.Work | None = None
        for number, tokens in enumerate(micro_batches):
            sending = self._pass(number, tokens, finish, sending)
        if sending is not None:
            sending.wait()
        self._train(True)

    def _pass(
        self, number: int, tokens: Tensor, finish: Callable[[int, Tensor], None], sending: dist.Work | None
    ) -> dist.Work | None:
        """One micro-batch's way through this rank's stages; the message that is still under way, if there is one."""
        x = tokens
        for index, part in self.parts.items():
            before, after = self.rank_of(index - 1), self.rank_of(index + 1)
            if index > 0 and before != self.grid.rank:
                x = self._receive(tokens.shape, before)
            with self._autocast():
                x = part(x)
            if index == self._stages - 1:
                finish(number, x)
            elif after != self.grid.rank:
                if sending is not None:
                    sending.wait()
                sending = dist.isend(x, group=self.grid.pipeline, group_dst=after)
        return sending

    def _receive(self, shape: torch.Size, source: int) -> Tensor:
        x = torch.empty(*shape, self._shape.dim, dtype=self.dtype, device=self.grid.device)
        dist.recv(x, group=self.grid.pipeline, group_src=source)
        return x

    def rank_of(self, stage: int) -> int:
        """The pipeline rank that holds a virtual stage."""
        return rank_of(stage, self.grid.ranks, self._params.rules.placement)

    def _train(self, mode: bool) -> None:
        for part in self.parts.values():
            part.train(mode)

    def _autocast(self) -> torch.autocast:
        return autocast(self._params.precision, self.grid.device)

    def _manual(self) -> list[Any]:
        parts = {index: self._build(index) for index in self.held}
        for part in parts.values():
            part.recompute = self._params.activation_checkpointing
        logits = torch.bfloat16 if self._params.precision == "bfloat16" else self.dtype
        return manual_stages(parts, self._stages, self._params.micro_batch, logits, self.grid)

    def _traced(self) -> list[Any]:
        shape = (self._params.micro_batch, self._shape.context)
        tokens = torch.zeros(shape, dtype=torch.int64, device=self.grid.device)
        return traced_stages(self._build(None), self.cuts, self.held, tokens, self.grid)

    def _build(self, index: int | None) -> Decoder:
        cut = None if index is None else self.cuts[index]
        return build(
            self._shape,
            cut,
            seed=self._params.seed,
            dtype=self.dtype,
            device=self.grid.device,
            make_layer=self.make_layer,
        )

    def _scheduled(self, stages: list[Any]) -> Any:
        """Torch's schedule. It would take means over micro-batches; the loss is scaled here, by all that it spans."""
        for stage in stages:
            if self._params.rules.placement == "v":
                _greet_neighbours_alone(stage, self.grid.rank)
            self.meter.watch(stage)
        tokens = self._params.batch_size * self._params.context
        loss = self.meter.timed(lambda logits, targets: summed_loss(logits, targets) / tokens)
        kind = get_schedule_class(self._params.schedule)
        given = stages if issubclass(kind, PipelineScheduleMulti) else stages[0]
        return kind(given, self._params.micro_batches, loss_fn=loss, scale_grads=False)


def _greet_neighbours_alone(stage: Any, rank: int) -> None:
    """Before its first step a stage greets the stages before and after it.

    Where the model is folded one of them lies on the same rank, and torch would send a message from this rank to itself
    (2.11; with traced stages 2.14, too), which Gloo can't.
    """
    greetings = stage._get_init_p2p_neighbors_ops
    stage._get_init_p2p_neighbors_ops = lambda: [one for one in greetings() if one.group_peer != rank]


def _tasks(actions: Iterable[Any]) -> Iterator[Task]:
    """What of torch's actions is computing, one by one."""
    for action in actions:
        if action is None:
            continue
        if action.sub_actions:
            yield from _tasks(action.sub_actions)
        elif action.computation_type.value in COSTS:
            yield Task(action.stage_index, action.computation_type.value, action.microbatch_index)
