# pyright: standard, reportPrivateImportUsage=false
"""`transformer-pipeline` in one process, written without pipelines, and gangs that try whole lists of schedules."""

import json
import multiprocessing
import os
import signal
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.pipelining import pipeline

from rolecall.kit import stages
from rolecall.kit.builders import build as build_custom
from rolecall.kit.data_order import DataOrder
from rolecall.kit.grid import Grid, make_grid
from rolecall.kit.pipelining import COSTS
from rolecall.kit.schedules import SCHEDULES
from rolecall.kit.text.corpus import open_corpus
from rolecall.runtime.timeline import Timeline
from rolecall.testing.gang import processes
from rolecall.workloads.transformer_pipeline.build import SplitDecoder, build_decoder, custom_layers, decoder_shape
from rolecall.workloads.transformer_pipeline.params import Params, SplitMethod
from rolecall.workloads.transformer_pipeline.remote import Pipeline

CPU = torch.device("cpu")
VOCABULARY = 29
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def whole_model(params: Params, vocabulary: int) -> nn.Module:
    """The whole model, with the first weights that the stages begin with."""
    dtype = torch.float64 if params.precision == "float64" else torch.float32
    if params.whole_model is not None:
        torch.manual_seed(params.seed)
        return build_custom(params.whole_model, vocabulary, params.context).to(dtype)
    return build_decoder(
        decoder_shape(params, vocabulary),
        None,
        seed=params.seed,
        dtype=dtype,
        device=CPU,
        make_layer=custom_layers(params),
    )


def mean_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Over all tokens of a batch."""
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


@dataclass
class Reference:
    """Every step's loss, and what is left after the last."""

    losses: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    validation_loss: float = 0.0


def train_alone(params: Params, cache: Path) -> Reference:
    """Plain PyTorch: the whole model, the whole batch, one optimizer, torch's own clipping."""
    corpus = open_corpus(params.text, cache)
    model = whole_model(params, corpus.vocabulary_size)
    arguments = params.optimizer.model_dump(exclude={"name"})
    vectors = [weight for weight in model.parameters() if weight.ndim == 1]
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = OPTIMIZERS[params.optimizer.name](groups, **arguments)
    reference = Reference()
    steps = params.max_steps or 0
    batches = _batches(corpus.tokens("train"), params)
    for step, (tokens, targets) in zip(range(steps), batches, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = params.optimizer.lr * params.lr_schedule.factor(step, steps)
        optimizer.zero_grad()
        loss = mean_loss(model, tokens, targets)
        loss.backward()
        if params.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), params.max_grad_norm)
        optimizer.step()
        reference.losses.append(loss.item())
    reference.weights = {name: weight.detach() for name, weight in model.named_parameters()}
    with torch.no_grad():
        rows = range((len(corpus.tokens("validation")) - 1) // params.context)
        held_out = _rows(corpus.tokens("validation"), list(rows), params.context)
        reference.validation_loss = mean_loss(model, *held_out).item()
    return reference


def _batches(tokens: Tensor, params: Params) -> Iterator[tuple[Tensor, Tensor]]:
    count = (len(tokens) - 1) // params.context
    order = DataOrder(count, params.batch_size, params.seed)
    for epoch in range(params.epochs):
        for step in range(count // params.batch_size):
            yield _rows(tokens, order.share(epoch, step, 0, 1).tolist(), params.context)


def _rows(tokens: Tensor, rows: list[int], context: int) -> tuple[Tensor, Tensor]:
    cut = [tokens[row * context : (row + 1) * context + 1].long() for row in rows]
    return torch.stack([row[:-1] for row in cut]), torch.stack([row[1:] for row in cut])


@dataclass(frozen=True)
class Outcome:
    """Differences of one rank's step from the single process's."""

    case: str
    as_planned: bool
    """True if the rank ran the tasks of the schedule in their order."""
    loss: float
    gradient: float


def case(schedule: str | dict[str, Any], replicas: int, micro_batches: int, **changes: Any) -> dict[str, Any]:
    """A small job for one step of 16 sequences per replica; its text is never read."""
    return {
        "text": {"train": "unread", "tokens": "character"},
        "context": 8,
        "layers": 10,
        "dim": 16,
        "heads": 2,
        "hidden": 32,
        "batch_size": 16 * replicas,
        "schedule": schedule,
        "replicas": replicas,
        "micro_batches": micro_batches,
        "precision": "float64",
        **changes,
    }


def legal_cases(ranks: int, replicas: int, precision: str) -> Iterator[dict[str, Any]]:
    """Every schedule with every split: by hand with all micro-batch counts, traced with the fewest, 8 and the most.

    A trace depends on the size of a micro-batch and takes seconds. What it leaves is scheduled as stages that are cut
    by hand are.

    Replicas run the same schedules, and only average what these leave. With them, each schedule has the fewest
    micro-batches with one split, and the most with the other.

    The model has one layer more than there are stages, so that one stage gets more layers than the others.
    """
    for name, rules in SCHEDULES.items():
        for virtual in sorted({rules.virtual_stages[0], rules.default_virtual_stages}):
            stages = ranks * virtual
            counts = rules.valid_micro_batches(16, ranks, stages)
            traced = sorted({counts[0], 8, counts[-1]})
            splits = [(count, "manual") for count in counts] + [(count, "tracer") for count in traced]
            if replicas > 1:
                splits = zip((counts[0], counts[-1]), get_args(SplitMethod), strict=True)
            for count, split in splits:
                changes = {"virtual_stages": virtual, "precision": precision, "split": split, "layers": stages + 1}
                yield case(name, replicas, count, **changes)


def try_cases(
    cases: Sequence[dict[str, Any]], workers: int, folder: Path, timeout_s: float = 400, plugins: str = ""
) -> list[Outcome]:
    """One gang of processes that takes a step of each case in turn; the outcomes of all ranks."""
    leader = processes.Process(target=_lead, args=(workers, list(cases), folder, plugins))
    leader.start()
    leader.join(timeout_s)
    with suppress(ProcessLookupError):
        os.killpg(int((folder / "gang").read_text()), signal.SIGKILL)
    leader.join()
    failures = sorted(folder.glob("failure-*"), key=lambda path: path.stat().st_mtime)
    assert not failures, "\n".join(f"{path.name}: {path.read_text()}" for path in failures)
    lines = [line for rank in range(workers) for line in (folder / f"outcomes-{rank}").read_text().splitlines()]
    assert len(lines) == workers * len(cases)
    return [Outcome(**json.loads(line)) for line in lines]


def _lead(workers: int, cases: list[dict[str, Any]], folder: Path, plugins: str) -> None:
    """Compute what the cases need, which takes seconds for a trace, and fork the gang, which then has it."""
    os.setsid()
    (folder / "gang").write_text(str(os.getpid()))
    os.environ["ROLECALL_PLUGINS"] = plugins
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    stages.pipeline = _traced_once
    for given in cases:
        params = Params.model_validate(given)
        _one_process(params)
        if params.split == "tracer":
            _trace(params, workers // params.replicas)
    fork = multiprocessing.get_context("fork")
    gang = [fork.Process(target=_work, args=(rank, workers, cases, folder)) for rank in range(workers)]
    for process in gang:
        process.start()
    for rank, process in enumerate(gang):
        process.join()
        if (ended := process.exitcode or 0) < 0:
            (folder / f"failure-{rank}").write_text(f"ended by {signal.Signals(-ended).name}")


def _trace(params: Params, ranks: int) -> None:
    model = SplitDecoder(params, VOCABULARY, ranks * params.stages_per_rank, CPU)
    tokens = torch.zeros(params.micro_batch, params.context, dtype=torch.int64)
    _traced_once(model.whole(), (tokens,), model.split_points)


def _work(rank: int, workers: int, cases: list[dict[str, Any]], folder: Path) -> None:
    # Before any other thread does: torch repairs its thread pool at its first use after a fork, not for two at once.
    torch.set_num_threads(1)
    try:
        store = dist.FileStore(str(folder / "store"), workers)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=workers, timeout=timedelta(seconds=60))
        grids: dict[int, Grid] = {}
        with (folder / f"outcomes-{rank}").open("w") as file:
            for given in cases:
                params = Params.model_validate(given)
                if params.replicas not in grids:
                    grids[params.replicas] = make_grid(params.replicas, CPU)
                file.write(json.dumps(_try(params, grids[params.replicas])) + "\n")
        dist.destroy_process_group()
    except BaseException:
        (folder / f"failure-{rank}").write_text(traceback.format_exc())
        raise


def _try(params: Params, grid: Grid) -> dict[str, Any]:
    """One step, and how far its loss and gradients are from the single process's."""
    tokens, targets = _random_batch(params)
    expected, gradients = _one_process(params)
    timeline = Timeline()
    stages = Pipeline(params, VOCABULARY, grid, timeline)
    mine = slice(grid.replica * params.replica_batch, (grid.replica + 1) * params.replica_batch)
    for _, weight in stages.named_parameters():
        weight.grad = None
    with timeline.step(1):
        loss = stages.step(tokens[mine], targets[mine]).sum()
    ran = [(span.stage, span.name, span.micro_batch) for span in timeline.window(1 << 24).spans if span.name in COSTS]
    dist.all_reduce(loss)
    grid.all_reduce_gradients(weight for _, weight in stages.named_parameters())
    distances = [(_gradient(weight) - gradients[name]).abs().max() for name, weight in stages.named_parameters()]
    return {
        "case": f"{params.schedule}/{params.split}/{params.stages_per_rank}x{params.micro_batches}/{params.precision}"
        + "".join(f"/{cut.layer}:{cut.at}" for cut in params.named_cuts or ())
        + ("/checkpointed" if params.activation_checkpointing else ""),
        "as_planned": ran == list(stages.order[grid.rank]),
        "loss": float(abs(loss - expected)),
        "gradient": float(torch.stack(distances).max()),
    }


_references: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}
_SCHEDULE = {"schedule", "split", "micro_batches", "virtual_stages", "cuts", "replicas", "activation_checkpointing"}


def _one_process(params: Params) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and the gradients of the whole model, which cases that differ in their schedule share."""
    key = params.model_dump_json(exclude=_SCHEDULE)
    if key not in _references:
        whole = whole_model(params, VOCABULARY)
        loss = mean_loss(whole, *_random_batch(params))
        loss.backward()
        gradients = {name: _gradient(weight) for name, weight in whole.named_parameters()}
        _references[key] = loss.detach(), gradients
    return _references[key]


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def _random_batch(params: Params) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(VOCABULARY, (params.batch_size, params.context + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


_traces: dict[Any, Any] = {}


def _traced_once(module: nn.Module, mb_args: tuple[Tensor], split_spec: dict[str, Any]) -> Any:
    """Instead of torch's `pipeline`: cases that cut the same model alike share one trace."""
    key = (tuple(split_spec.items()), mb_args[0].shape, next(module.parameters()).dtype)
    if key not in _traces:
        _traces[key] = pipeline(module, mb_args, split_spec=split_spec)
    return _traces[key]
