"""Runs gangs of several sizes on two cores, and predicts clusters from them: `python -m benchmarks.scale [--out FILE]`.

All workers have one thread, and each trainer or observer the same amount of work, whatever their number. The table
compares each run with the prediction of `scale_model` from costs that are fitted to all runs.
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
from benchmarks.machine import describe
from benchmarks.processes import CORES, SKIPPED, gang
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
_FLOAT = 4
_PIPELINE = transformer_pipeline.Params.model_validate(transformer_pipeline.params())


@dataclass(frozen=True, slots=True)
class Measured:
    """A run of a gang."""

    workload: str
    counts: tuple[int, int]
    """Servers and trainers, stages and replicas, or agents and observers."""
    run: Run

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
    """The costs of all workloads."""
    of = {name: [one for one in runs if one.workload == name] for name in {one.workload for one in runs}}
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


def report(runs: Sequence[Measured], costs: Costs) -> str:
    """Markdown: the runs with their predictions, and the predictions of clusters."""
    lines = ["| workload | gang | CPU in use | units/s | predicted | error |", "|---|---|---|---|---|---|"]
    for one in runs:
        found, run = on_this_machine(costs, one), one.run
        use = sum(run.cpu_ms.values()) / run.step_ms / CORES
        error = f"{found.rate / run.rate - 1:+.0%}"
        lines.append(f"| `{one.workload}` | {found.gang} | {use:.0%} | {run.rate:,.0f} | {found.rate:,.0f} | {error} |")
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


def main() -> None:
    """Run, print the report, and write the runs and the costs as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/scale.json"), help="file for the runs and the costs")
    options = parser.parse_args()
    os.environ["PYTHONWARNINGS"] = "ignore"  # Of the gangs, whose processes begin after this.
    runs = measure()
    costs = fitted(runs)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": describe(), "runs": [asdict(one) for one in runs], "costs": asdict(costs)}
    options.out.write_text(json.dumps(document, indent=1, default=str))
    print(report(runs, costs))


if __name__ == "__main__":
    main()
