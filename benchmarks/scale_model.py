"""Predicts the throughput of clusters from costs that runs on one machine measured. Pure.

A step's time is the sum of its phases, because nothing overlaps. On a machine with fewer cores than workers, a step
also takes at least the CPU time of all workers over the cores.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

GIGABIT = 1e9 / 8
"""Bytes per second of a link of 1 Gb/s."""
NODES = (10, 30, 100, 300, 1000)
LINKS = (10, 25, 100, 400)
"""Gb/s in each direction."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The throughput of a gang, and the time of a step by resource."""

    rate: float
    """Units per second."""
    seconds: Mapping[str, float]
    """The duration of each phase of a step, by the resource that it occupies."""
    gang: str
    """Servers + trainers, replicas × stages, or the agent + observers."""

    @property
    def limit(self) -> str:
        """The resource that takes most of a step: it saturates first."""
        return max(self.seconds, key=lambda name: self.seconds[name])


@dataclass(frozen=True, slots=True)
class EmbeddingCosts:
    """Costs of a step of `embedding-ddp` in which each trainer has the same number of rows."""

    rows: float
    """Rows of a trainer's share."""
    trainer_s: float
    """CPU seconds of a trainer without its calls."""
    call_s: float
    """CPU seconds of a trainer for the calls of one server."""
    server_s: float
    """CPU seconds of all servers for the rows of one trainer."""
    served_call_s: float
    """CPU seconds of a server for the calls of one trainer."""
    pulled_bytes: float
    """Bytes of the vectors that all servers send to one trainer; its gradients have the same size."""
    dense_bytes: float
    """Bytes of the gradients that trainers average."""


@dataclass(frozen=True, slots=True)
class PipelineCosts:
    """Costs of a step of a pipeline."""

    samples: float
    """Samples of a step of one replica."""
    micro_batches: int
    compute_s: float
    """CPU seconds of all stages for a step."""
    edge_s: float
    """Further CPU seconds of a step for each cut between stages."""
    edge_bytes: float
    """Bytes of the activations of a micro-batch at a cut; their gradients have the same size."""
    parameter_bytes: float
    """Bytes of the gradients of all stages, which replicas average."""


@dataclass(frozen=True, slots=True)
class ReinforceCosts:
    """Costs of an update of `reinforce`, for the environment steps that one observer collects for it."""

    steps: float
    """Environment steps of one observer."""
    observer_s: float
    """CPU seconds of an observer."""
    agent_s: float
    """CPU seconds of the agent for the steps of one observer."""
    update_s: float
    """CPU seconds of the agent for an update, whatever the number of observers."""
    trajectory_bytes: float
    """Bytes of one observer's trajectory."""


def embedding(
    costs: EmbeddingCosts, *, servers: int, trainers: int, link: float = float("inf"), cores: int | None = None
) -> Prediction:
    """`sync` with servers and trainers of one thread each; `link` is in bytes per second and direction."""
    served_s = (costs.server_s + costs.served_call_s * servers) * trainers / servers
    averaged = 2 * (trainers - 1) / trainers * costs.dense_bytes
    seconds = {
        "trainer CPU": costs.trainer_s + costs.call_s * servers,
        "server CPU": served_s,
        # Vectors go out after all requests have come in, and gradients come in after the backward passes.
        "server link": 2 * costs.pulled_bytes * trainers / servers / link,
        "trainer link": (2 * costs.pulled_bytes + averaged) / link,
    }
    own = seconds["trainer CPU"] * trainers + served_s * servers
    name = f"{servers} + {trainers}"
    return Prediction(costs.rows * trainers / _step_s(seconds, own, cores), seconds, name)


def pipeline(
    costs: PipelineCosts, *, stages: int, replicas: int = 1, link: float = float("inf"), cores: int | None = None
) -> Prediction:
    """1F1B with balanced stages of one thread each."""
    own = costs.compute_s + costs.edge_s * (stages - 1)
    busy_s = own / stages
    # The first micro-batch passes all cuts before the last stage begins, and its gradient passes them back.
    edges = 2 * (stages - 1) * costs.edge_bytes
    averaged = 2 * (replicas - 1) / replicas * costs.parameter_bytes / stages
    seconds = {
        "stage CPU": busy_s,
        "bubble": busy_s * (stages - 1) / costs.micro_batches,
        "stage link": (edges + averaged) / link,
    }
    rate = costs.samples * replicas / _step_s(seconds, own * replicas, cores)
    return Prediction(rate, seconds, f"{replicas} × {stages}")


def reinforce(
    costs: ReinforceCosts, *, observers: int, link: float = float("inf"), cores: int | None = None
) -> Prediction:
    """One agent with one thread, which waits for the trajectories of all observers."""
    seconds = {
        "observer CPU": costs.observer_s,
        "agent CPU": costs.update_s + costs.agent_s * observers,
        "agent link": costs.trajectory_bytes * observers / link,
    }
    # The agent learns alone: this is never done while observers compute.
    shared_s = costs.observer_s * observers / cores if cores else 0.0
    step_s = max(costs.observer_s, shared_s) + seconds["agent CPU"] + seconds["agent link"]
    return Prediction(costs.steps * observers / step_s, seconds, f"1 + {observers}")


def best_embedding(costs: EmbeddingCosts, nodes: int, link: float) -> Prediction:
    """The division of the nodes into servers and trainers that gives the highest rate; a node has one worker."""
    found = (embedding(costs, servers=one, trainers=nodes - one, link=link) for one in range(1, nodes))
    return max(found, key=lambda one: one.rate)


def best_pipeline(costs: PipelineCosts, nodes: int, link: float, most_stages: int) -> Prediction:
    """The number of stages that gives the highest rate."""
    found = (
        pipeline(costs, stages=stages, replicas=nodes // stages, link=link)
        for stages in range(2, min(nodes, most_stages) + 1)
    )
    return max(found, key=lambda one: one.rate)


def _step_s(seconds: Mapping[str, float], cpu_s: float, cores: int | None) -> float:
    """The phases one after the other, or the CPU seconds of all workers over the cores that they share."""
    return max(sum(seconds.values()), cpu_s / cores if cores else 0.0)


def fit(rows: Iterable[Sequence[float]], values: Iterable[float]) -> list[float]:
    """Factors [n] that are not negative, with which the rows [m, n] give the values [m] best by least squares."""
    matrix, wanted = np.array(list(rows), np.float64), np.array(list(values), np.float64)
    kept = list(range(matrix.shape[1]))
    while True:
        found = np.linalg.lstsq(matrix[:, kept], wanted, rcond=None)[0]
        if found.min() >= 0 or len(kept) == 1:
            break
        kept.pop(int(found.argmin()))
    factors = [0.0] * matrix.shape[1]
    for place, factor in zip(kept, found, strict=True):
        factors[place] = max(0.0, float(factor))
    return factors
