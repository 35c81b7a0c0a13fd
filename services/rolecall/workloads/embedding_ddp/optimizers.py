"""Torch's optimizers of sparse gradients by the names that the parameters give them."""

from typing import Any

from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from rolecall.workloads.embedding_ddp import params as spec


def sparse_optimizer(
    chosen: spec.SparseSgd | spec.SparseAdagrad | spec.SparseAdam,
) -> tuple[type[Optimizer], dict[str, Any]]:
    """The class and arguments of the table's optimizer; all three take sparse gradients."""
    match chosen:
        case spec.SparseSgd():
            return SGD, {"lr": chosen.lr}
        case spec.SparseAdagrad():
            return Adagrad, {
                "lr": chosen.lr,
                "initial_accumulator_value": chosen.initial_accumulator,
                "eps": chosen.eps,
            }
        case spec.SparseAdam():
            return SparseAdam, {"lr": chosen.lr, "betas": chosen.betas, "eps": chosen.eps}
