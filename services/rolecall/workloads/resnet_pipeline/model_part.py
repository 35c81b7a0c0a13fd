"""One stage's part of the model, with its gradients and optimizer. Independent of the other stages."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import nn

from rolecall.kit.checkpoint import flatten_named_optimizer, restore_named_optimizer
from rolecall.kit.metrics import cross_entropies, one_hot_errors
from rolecall.kit.optimizers import dense_optimizer, scale_rates
from rolecall.kit.precision import autocast, weight_dtype
from rolecall.spec.errors import CheckpointError
from rolecall.workloads.resnet_pipeline.build import to_device, whole_model
from rolecall.workloads.resnet_pipeline.model import Blocks
from rolecall.workloads.resnet_pipeline.params import Params
from rolecall.workloads.resnet_pipeline.split_backward import WeightPass, split_backward

_MODEL, _OPTIMIZER = "model/", "optimizer/"
SAMPLE_LOSSES = {"cross-entropy": cross_entropies, "mse": one_hot_errors}
"""For each `loss`, the function from outputs [b, classes] and labels [b] to the losses [b] of scores."""


def mean_loss(params: Params, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean training loss of outputs [b, classes] for labels [b], in the data type of the weights."""
    outputs = outputs.to(weight_dtype(params.precision))
    if params.loss == "mse":
        return one_hot_errors(outputs, labels).mean()
    return F.cross_entropy(outputs, labels, label_smoothing=params.label_smoothing)


class ModelPart:
    """Consecutive blocks. Inputs and outputs are [b, channels, height, width]; the last part outputs the loss."""

    def __init__(self, params: Params, classes: int, names: Sequence[str], device: torch.device) -> None:
        self._params, self._device = params, device
        self._autocast = autocast(params.precision, device)
        blocks = Blocks(whole_model(params, classes), names)
        self.blocks = to_device(blocks, params, device)
        self._optimizer = dense_optimizer(params.optimizer).build(self.blocks.parameters())
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._deferred: list[WeightPass] = []
        self._weight_passes: dict[int, list[WeightPass]] = {}

    def split_backward(self) -> None:
        """From now on, `backward` leaves most gradients of weights to `backward_weights`."""
        split_backward(self.blocks, self._deferred)

    def compute(self, features: torch.Tensor) -> torch.Tensor:
        """The blocks' outputs, with autograd graph."""
        features = features.to(self._device).contiguous(memory_format=torch.channels_last)
        with self._autocast:
            return self.blocks(features)

    def forward(self, micro_batch: int, features: torch.Tensor, *, needs_input_gradient: bool) -> torch.Tensor:
        """The outputs for the next stage; saves inputs and outputs for `backward`."""
        inputs = features.to(self._device).requires_grad_(needs_input_gradient)
        outputs = self.compute(inputs)
        self._saved[micro_batch] = inputs, outputs
        return outputs.detach()

    def forward_loss(self, micro_batch: int, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """At the last stage, the micro-batch's contribution to its replica's mean loss; saves inputs and loss."""
        self.forward(micro_batch, features, needs_input_gradient=True)
        inputs, logits = self._saved[micro_batch]
        loss = mean_loss(self._params, logits, labels.to(self._device)) / self._params.micro_batches
        self._saved[micro_batch] = inputs, loss
        return loss.detach()

    def backward(self, micro_batch: int, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        """Accumulate the micro-batch's gradients. Returns the gradient for the previous stage, if any.

        After `split_backward`, call `backward_weights` for the rest.
        """
        inputs, outputs = self._saved.pop(micro_batch)
        outputs.backward(None if gradient is None else gradient.to(self._device))
        self._weight_passes[micro_batch] = self._deferred[:]
        self._deferred.clear()
        return inputs.grad

    def backward_weights(self, micro_batch: int) -> None:
        """Accumulate the micro-batch's gradients of weights that `backward` has left."""
        for accumulate in self._weight_passes.pop(micro_batch):
            accumulate()

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Evaluation mode without gradients."""
        self.blocks.eval()
        with torch.no_grad():
            yield
        self.blocks.train()

    def update(self, rate_factor: float) -> None:
        """Step the optimizer with the learning rate times `rate_factor`, then clear the gradients."""
        scale_rates(self._optimizer, rate_factor)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def replicated_tensors(self) -> Iterator[torch.Tensor]:
        """The tensors to average over replicas after a step's backward passes: gradients and running statistics."""
        yield from (parameter.grad for parameter in self.blocks.parameters() if parameter.grad is not None)
        yield from (buffer for buffer in self.blocks.buffers() if buffer.is_floating_point())

    def weights(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers on the CPU, by their names in the whole model."""
        names = self.blocks.model_names
        return {names[name]: value.cpu().contiguous() for name, value in self.blocks.state_dict().items()}

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and optimizer state for checkpoints, by names that don't depend on the cuts."""
        model = {_MODEL + name: value for name, value in self.weights().items()}
        return model | flatten_named_optimizer(self._optimizer, self._parameters(), _OPTIMIZER)

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore from the `state` of all parts; raises `CheckpointError` if a tensor is missing."""
        keys = {name: _MODEL + whole_name for name, whole_name in self.blocks.model_names.items()}
        if missing := [name for name in keys.values() if name not in tensors]:
            raise CheckpointError(
                f"the checkpoint lacks {missing[0]} and {len(missing) - 1} more tensors of this stage"
            )
        self.blocks.load_state_dict({name: tensors[key] for name, key in keys.items()})
        restore_named_optimizer(self._optimizer, self._parameters(), tensors, _OPTIMIZER)

    def _parameters(self) -> dict[str, nn.Parameter]:
        """The parameters by their names in the whole model."""
        return {self.blocks.model_names[name]: parameter for name, parameter in self.blocks.named_parameters()}
