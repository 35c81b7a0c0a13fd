# pyright: standard
"""Runs gangs of several sizes on two cores, and predicts clusters from them: `python -m benchmarks.scale [--out FILE]`.

All workers have one thread, and each trainer or observer the same amount of work, whatever their number. The costs of
`scale_model` are fitted to the runs of smaller gangs. The first table compares each run with its prediction, also the
runs of the largest gangs, which are held out of the fit: their errors show how well the model predicts larger gangs.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn

from benchmarks import embedding_ddp, reinforce, scale_model, transformer_pipeline
from benchmarks.contest import Run
from benchmarks.machine import CORES, describe
from benchmarks.processes import SKIPPED, gang
from benchmarks.scale_model import GIGABIT, LINKS, NODES, EmbeddingCosts, PipelineCosts, Prediction, ReinforceCosts
from rolecall.spec.role import Role
from rolecall.workloads.embedding_ddp.build import make_dense, open_dataset

ROWS = 1024
"""Rows of a trainer's share of a batch."""
STEPS = SKIPPED + 15
ENVIRONMENTS, ROLLOUT = 8, 128
EMBEDDING = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (3, 4), (4, 4))
"""Servers and trainers."""
STAGES = (2, 3, 4)
OBSERVERS = (1, 2, 4, 8)
HELD_OUT = {
    ("embedding-ddp", (1, 8)),
    ("embedding-ddp", (4, 4)),
    ("transformer-pipeline", (4, 1)),
    ("reinforce", (1, 8)),
}
"""The gangs to whose runs no costs are fitted: the most trainers and servers, stages, and observers."""
_FLOAT = 4
_PIPELINE = transformer_pipeline.Params.model_validate(transformer_pipeline.params())


@dataclass(frozen=True, slots=True)
class Measured:
    """A run of a gang."""

    workload: str
    counts: tuple[int, int]
    """Servers and trainers, stages and replicas, or agents and observers."""
    run: Run

    @property
    def is_held_out(self) -> bool:
        return (self.workload, self.counts) in HELD_OUT

    def cpu_s(self, role: str) -> float:
        """CPU seconds per step of all workers of a role."""
        return sum(value for name, value in self.run.cpu_ms.items() if name.startswith(f"{role}-")) / 1e3


def measure() -> list[Measured]:
    """All runs, one after the other."""
    found: list[Measured] = []
    for workload, counts, contender in _contenders():
        with tempfile.TemporaryDirectory(prefix="rolecall-scale-") as folder:
            found.append(Measured(workload, counts, contender(Path(folder))))
        print(f"{workload} {counts}: {found[-1].run.rate:,.1f}/s", file=sys.stderr, flush=True)
    return found


def _contenders() -> list[tuple[str, tuple[int, int], Callable[[Path], Run]]]:
    found: list[tuple[str, tuple[int, int], Callable[[Path], Run]]] = []
    for servers, trainers in EMBEDDING:
        params = embedding_ddp.params(batch_size=ROWS * trainers, max_steps=STEPS)
        params["data"]["synthetic"]["rows"] = ROWS * trainers * STEPS
        roles = {Role.MASTER: 1, Role.PARAMETER_SERVER: servers, Role.TRAINER: trainers}
        found.append(("embedding-ddp", (servers, trainers), gang("embedding-ddp", params, roles, reporter="trainer-0")))
    for stages in STAGES:
        params, roles = transformer_pipeline.params(schedule="1F1B"), {Role.STAGE: stages}
        run = gang("transformer-pipeline", params, roles, reporter=f"stage-{stages - 1}", skipped=2)
        found.append(("transformer-pipeline", (stages, 1), run))
    for observers in OBSERVERS:
        params = reinforce.ppo() | {"environments": ENVIRONMENTS, "max_updates": 16}
        roles = {Role.TRAINER: 1, Role.OBSERVER: observers}
        found.append(("reinforce", (1, observers), gang("reinforce", params, roles, reporter="trainer-0", skipped=4)))
    return found


def embedding_costs(runs: Sequence[Measured]) -> EmbeddingCosts:
    """Fitted to the CPU times of runs of `embedding-ddp`."""
    counts = [one.counts for one in runs]
    trainer_s, call_s = scale_model.fit(
        [(1, servers) for servers, _ in counts],
        [one.cpu_s("trainer") / one.counts[1] for one in runs],
    )
    server_s, served_call_s = scale_model.fit(
        [(trainers, servers * trainers) for servers, trainers in counts],
        [one.cpu_s("parameter-server") for one in runs],
    )
    return EmbeddingCosts(ROWS, trainer_s, call_s, server_s, served_call_s, *_embedding_bytes())


def _embedding_bytes() -> tuple[int, int]:
    """Bytes of the distinct ids in a trainer's share with their vectors, and of the dense layers."""
    given = embedding_ddp.params(batch_size=ROWS, max_steps=1)
    given["data"]["synthetic"]["rows"] = ROWS
    params = embedding_ddp.Params.model_validate(given)
    with tempfile.TemporaryDirectory(prefix="rolecall-scale-") as folder:
        dataset = open_dataset(params, Path(folder))
        distinct = len(next(dataset.train_batches(0, 0, 0, 1)).ids.unique())
    dense = make_dense(params, dataset.dense_inputs, dataset.classes)
    return distinct * (_FLOAT * params.embedding_dim + 8), _parameters(dense) * _FLOAT


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def pipeline_costs(runs: Sequence[Measured]) -> PipelineCosts:
    """Fitted to the CPU times of runs of `transformer-pipeline`."""
    compute_s, edge_s = scale_model.fit([(1, one.counts[0] - 1) for one in runs], [one.cpu_s("stage") for one in runs])
    samples, micro_batches = _PIPELINE.batch_size, _PIPELINE.micro_batches
    edge = samples // micro_batches * _PIPELINE.context * _PIPELINE.dim * _FLOAT
    gradients = _parameters(transformer_pipeline.whole_model(_PIPELINE)) * _FLOAT
    return PipelineCosts(samples, micro_batches, compute_s, edge_s, edge, gradients)


def reinforce_costs(runs: Sequence[Measured]) -> ReinforceCosts:
    """Fitted to the CPU times of runs of `reinforce`."""
    counts = [one.counts[1] for one in runs]
    (observer_s,) = scale_model.fit([(observers,) for observers in counts], [one.cpu_s("observer") for one in runs])
    update_s, agent_s = scale_model.fit(
        [(1, observers) for observers in counts], [one.cpu_s("trainer") for one in runs]
    )
    steps = ENVIRONMENTS * ROLLOUT
    # Observations, action, log-probability, reward, and three flags.
    return ReinforceCosts(steps, observer_s, agent_s, update_s, steps * (4 * _FLOAT + 8 + 4 + 8 + 3))


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of the three models."""

    embedding: EmbeddingCosts
    pipeline: PipelineCosts
    reinforce: ReinforceCosts


def fitted(runs: Sequence[Measured]) -> Costs:
    """The costs of all workloads, from the runs that are not held out."""
    kept = [one for one in runs if not one.is_held_out]
    of = {name: [one for one in kept if one.workload == name] for name in {one.workload for one in kept}}
    return Costs(
        embedding_costs(of["embedding-ddp"]),
        pipeline_costs(of["transformer-pipeline"]),
        reinforce_costs(of["reinforce"]),
    )


def on_this_machine(costs: Costs, run: Measured) -> Prediction:
    """The prediction for the gang of a run, on the cores of the run."""
    first, second = run.counts
    match run.workload:
        case "embedding-ddp":
            return scale_model.embedding(costs.embedding, servers=first, trainers=second, cores=CORES)
        case "transformer-pipeline":
            return scale_model.pipeline(costs.pipeline, stages=first, replicas=second, cores=CORES)
        case _:
            return scale_model.reinforce(costs.reinforce, observers=second, cores=CORES)


def clusters(costs: Costs, nodes: int, link: float) -> dict[str, Prediction]:
    """The best gang of each workload on nodes with one worker of one thread; `link` is in bytes per second."""
    return {
        "embedding-ddp": scale_model.best_embedding(costs.embedding, nodes, link),
        "transformer-pipeline": scale_model.best_pipeline(costs.pipeline, nodes, link, _PIPELINE.layers),
        "reinforce": scale_model.reinforce(costs.reinforce, observers=nodes - 1, link=link),
    }


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run and its prediction."""

    workload: str
    gang: str
    cpu_use: float
    """The share of the cores that was busy."""
    rate: float
    predicted: float
    error: float
    """Of the prediction, relative to the run."""
    is_held_out: bool


def compare(runs: Sequence[Measured], costs: Costs) -> list[Comparison]:
    """All runs with their predictions."""
    found: list[Comparison] = []
    for one in runs:
        predicted, run = on_this_machine(costs, one), one.run
        use = sum(run.cpu_ms.values()) / run.step_ms / CORES
        error = predicted.rate / run.rate - 1
        found.append(Comparison(one.workload, predicted.gang, use, run.rate, predicted.rate, error, one.is_held_out))
    return found


def report(runs: Sequence[Measured], costs: Costs) -> str:
    """Markdown: the runs with their predictions, the largest errors, and the predictions of clusters."""
    compared = compare(runs, costs)
    lines = [
        "| workload | gang | CPU in use | units/s | predicted | error | held out |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in compared:
        figures = f"{one.cpu_use:.0%} | {one.rate:,.0f} | {one.predicted:,.0f} | {one.error:+.0%}"
        lines.append(f"| `{one.workload}` | {one.gang} | {figures} | {'yes' if one.is_held_out else ''} |")
    lines += ["", "| workload | largest error of runs in the fit | of runs that are held out |", "|---|---|---|"]
    for workload in dict.fromkeys(one.workload for one in compared):
        largest = (_largest_error(compared, workload, is_held_out=held_out) for held_out in (False, True))
        lines.append(f"| `{workload}` | {' | '.join(largest)} |")
    heads = " | ".join(f"{link} Gb/s" for link in LINKS)
    lines += ["", f"| workload | nodes | {heads} | gang at {LINKS[-1]} Gb/s | takes most of a step |"]
    lines.append("|---" * (len(LINKS) + 4) + "|")
    for workload in clusters(costs, 10, GIGABIT):
        for nodes in NODES:
            found = [clusters(costs, nodes, link * GIGABIT)[workload] for link in LINKS]
            rates = " | ".join(f"{one.rate:,.0f}" for one in found)
            limits = ", ".join(sorted({one.limit for one in found}))
            lines.append(f"| `{workload}` | {nodes:,} | {rates} | {found[-1].gang} | {limits} |")
    return "\n".join(lines)


def _largest_error(compared: Sequence[Comparison], workload: str, *, is_held_out: bool) -> str:
    chosen = [one for one in compared if one.workload == workload and one.is_held_out == is_held_out]
    worst = max(chosen, key=lambda one: abs(one.error))
    return f"{worst.error:+.0%} ({worst.gang})"


def main() -> None:
    """Run, print the report, and write the runs and the costs as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("build/scale.json"), help="file for the runs, the costs and the predictions"
    )
    options = parser.parse_args()
    os.environ["PYTHONWARNINGS"] = "ignore"  # Of the gangs, whose processes begin after this.
    runs = measure()
    costs = fitted(runs)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": describe(),
        "runs": [asdict(one) for one in runs],
        "costs": asdict(costs),
        "predictions": [asdict(one) for one in compare(runs, costs)],
    }
    options.out.write_text(json.dumps(document, indent=1, default=str))
    print(report(runs, costs))


if __name__ == "__main__":
    main()
