"""Loss and metrics for each kind of label."""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor

from rolecall.kit.metrics import binary_metrics, class_metrics, regression_metrics
from rolecall.workloads.embedding_ddp.params import Loss, Params

_FUNCTIONS: dict[Loss, Callable[..., Tensor]] = {
    "binary-cross-entropy": F.binary_cross_entropy_with_logits,
    "cross-entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": F.huber_loss,
}
_INCREASING = ("auc", "accuracy")


def losses(params: Params, outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss [b] of each row, of outputs [b] or [b, classes] and labels [b]."""
    target = labels.to(outputs.device) if params.target == "classes" else labels.to(outputs)
    return _FUNCTIONS[params.loss_name](outputs, target, reduction="none")


def metrics(
    params: Params, split: str, scored: Iterable[tuple[Tensor, Tensor]], device: torch.device
) -> dict[str, float]:
    """The metrics of a split by name, from this trainer's (outputs, labels); a collective of the trainers."""
    match params.target:
        case "binary":
            return binary_metrics(split, scored, device)
        case "classes":
            return class_metrics(split, scored, device)
        case "number":
            return regression_metrics(split, scored, _FUNCTIONS[params.loss_name], device)


def score(params: Params, found: dict[str, float]) -> float:
    """The validation metric of early stopping, negated if it must decrease."""
    value = found[f"validation_{params.stopping_metric}"]
    return value if params.stopping_metric in _INCREASING else -value
