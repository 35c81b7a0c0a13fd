"""Checks of `transformer-pipeline` jobs before the gang starts. Torch-free."""

from rolecall.kit import InputError, Role, counted
from rolecall.kit.builders import check_builder
from rolecall.kit.csv_schedules import CsvSchedule
from rolecall.kit.divisors import nearest
from rolecall.kit.own_schedule import OwnSchedule
from rolecall.kit.params import check_precision
from rolecall.kit.text.reading import check_text
from rolecall.workloads.transformer_pipeline.params import Params


def check_counts(params: Params, counts: dict[Role, int]) -> None:
    """Raises `ValueError` if the number of stages doesn't fit the parameters."""
    ranks = _pipeline_ranks(params, counts[Role.STAGE])
    stages = ranks * params.stages_per_rank
    if params.named_cuts is not None and len(params.named_cuts) != stages - 1:
        raise ValueError(
            f"cuts has {counted(len(params.named_cuts), 'block')} for {counted(stages, 'virtual stage')}; "
            f"it needs {stages - 1}, one for each stage but the first"
        )
    if params.cuts is None and params.whole_model is None and params.layers < stages:
        raise ValueError(
            f"{counted(ranks, 'pipeline rank')} with {counted(params.stages_per_rank, 'virtual stage')} each make "
            f"{stages} virtual stages, but layers is {params.layers}; each needs a layer: set layers "
            f"to at least {stages}, or use fewer stages"
        )
    _check_micro_batches(params, ranks, stages)


def check_node(params: Params, role: Role) -> None:
    """Raises `InputError` for a file that is not text, a forbidden builder, cuts that a custom model can't have or a
    device without the precision."""
    check_precision(params.precision)
    if params.model is not None:
        check_builder(params.model)
    if params.whole_model is not None and params.named_cuts is not None:
        # The master imports this file, and must not import torch.
        from rolecall.workloads.transformer_pipeline.build import check_cuts  # noqa: PLC0415

        check_cuts(params, params.whole_model)
    check_text(params.text)
    if isinstance(params.schedule, OwnSchedule):
        params.check_own_schedule(params.schedule.load())


def check_ranks(own: CsvSchedule, ranks: int) -> None:
    """Raises `InputError` if a job with this number of pipeline ranks can't run an own schedule."""
    if own.ranks != ranks:
        raise InputError(
            f"the schedule has {own.ranks} rows, one for each pipeline rank, but the job has {ranks} pipeline ranks; "
            f"use {own.ranks} × replicas stages"
        )


def _pipeline_ranks(params: Params, workers: int) -> int:
    """The number of ranks in one replica of the pipeline."""
    ranks, rest = divmod(workers, params.replicas)
    if rest:
        # A pipeline has at least two ranks.
        nearest_stages = sorted({params.replicas * max(2, count) for count in (ranks, ranks + 1)})
        raise ValueError(
            f"{workers} stages are not divisible by {params.replicas} replicas; "
            f"use {params.replicas} × the number of pipeline ranks: {' or '.join(map(str, nearest_stages))}"
        )
    if ranks < 2:
        raise ValueError(
            f"{workers} stages make {params.replicas} pipelines of 1 rank; a pipeline needs at least 2 ranks: "
            f"use {2 * params.replicas} stages, or set replicas to at most {max(1, workers // 2)}"
        )
    return ranks


def _check_micro_batches(params: Params, ranks: int, stages: int) -> None:
    if (rules := params.rules) is None:
        if params.own_schedule is not None:
            try:
                check_ranks(params.own_schedule, ranks)
            except InputError as error:
                raise ValueError(str(error)) from error
        return
    if rules.micro_batches.is_valid(params.micro_batches, ranks, stages):
        return
    valid = rules.valid_micro_batches(params.replica_batch, ranks, stages)
    hint = (
        f"nearest valid for batches of {params.replica_batch}: {nearest(valid, params.micro_batches)}"
        if valid
        else f"no number of micro-batches is valid for batches of {params.replica_batch}; use a larger batch_size"
    )
    raise ValueError(
        f"micro_batches is {params.micro_batches}; schedule {rules.name} with {ranks} ranks and {stages} virtual "
        f"stages requires {rules.micro_batches.description}; {hint}"
    )
