"""The trainers' calls of embedding and decoder: `ShardedModel` in the built-in form, `RNNModel` in the tutorial's."""

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.data_order import derive_seed
from rolecall.kit.parameter_server import (
    DecoderShard,
    EmbeddingShard,
    RemoteDecoder,
    Send,
    ShardedEmbedding,
    Shards,
    ShardSpec,
    Uniform,
    logit_columns,
    parameter_references,
    token_losses,
)
from rolecall.kit.params import Precision
from rolecall.kit.precision import autocast, weight_dtype
from rolecall.kit.text.batches import Segment
from rolecall.kit.worker import call, span
from rolecall.workloads.rnn_lm.model import State
from rolecall.workloads.rnn_lm.params import Params

M = TypeVar("M", bound=nn.Module)
P = ParamSpec("P")
T = TypeVar("T")

_CPU = torch.device("cpu")


class ShardedModel(nn.Module):
    """The losses by the built-in form: each distinct token is sent once, and all dropout is in `recurrent`."""

    def __init__(
        self, params: Params, shards: Shards, recurrent: nn.Module, device: torch.device, *, trainer: int, send: Send
    ) -> None:
        super().__init__()
        transfer_device = shards.transfer_device(device)
        self._embedding = ShardedEmbedding(shards.of("embedding"), transfer_device)
        self._recurrent = recurrent
        self._decoder = RemoteDecoder(shards.of("decoder"), transfer_device, params.loss_at, trainer, send)
        self._precision: Precision = params.precision
        self._device = device

    def forward(self, batch: Segment, state: State | None) -> tuple[Tensor, State]:
        """The loss [t · b] of each token, and the final state."""
        vectors = self._embedding(batch.inputs).to(self._device)
        with autocast(self._precision, self._device):
            hidden, after = self._recurrent(vectors, state)
        return self._decoder.losses(hidden.flatten(0, 1), batch.targets.flatten()), after


# The form of the PyTorch tutorial "Getting Started with Distributed RPC Framework": embedding table and decoder with
# their dropout on the servers, `RNNModel` between them.
#
# Unlike there, several servers can share a table or decoder, and each call brings the seed of its dropout mask, so that
# servers have no random state, which would depend on the order of calls. Tensors are sent on the CPU, as there.


def remote_method(
    method: Callable[Concatenate[M, P], T], module: rpc.RRef[M], *arguments: P.args, **named: P.kwargs
) -> T:
    """The result of `method` of a remote module, or of a function of it, computed by its owner.

    Differentiable in a distributed autograd context, unless the caller has disabled gradients.
    """
    return remote_method_async(method, module, *arguments, **named).wait()


def remote_method_async(
    method: Callable[Concatenate[M, P], T], module: rpc.RRef[M], *arguments: P.args, **named: P.kwargs
) -> Future[T]:
    """As `remote_method`, without waiting for the result."""
    return call(module.owner(), _call_method, method, module, torch.is_grad_enabled(), arguments, named)


def _call_method(
    method: Callable[..., Any], module: rpc.RRef[nn.Module], grad: bool, arguments: Any, named: Any
) -> Any:
    with torch.set_grad_enabled(grad):
        return method(module.local_value(), *arguments, **named)


class SeededDropout(nn.Module):
    """Dropout whose mask depends only on a seed, for modules that several processes call concurrently."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, values: Tensor, seed: int | None) -> Tensor:
        """The values after dropout; unchanged without a seed, for evaluation."""
        if seed is None or self.rate == 0.0:
            return values
        generator = torch.Generator(values.device).manual_seed(seed)
        kept = torch.empty_like(values).bernoulli_(1 - self.rate, generator=generator)
        return values * kept / (1 - self.rate)


class EmbeddingTable(EmbeddingShard):
    """Rows of the embedding on a parameter server's GPU, or CPU, with dropout of the vectors."""

    def __init__(self, params: Params, spec: ShardSpec) -> None:
        initializer = Uniform(derive_seed(params.seed, 0), params.init_range)
        super().__init__(spec, params.embedding_dim, initializer, weight_dtype(params.precision), sparse=False)
        self.drop = SeededDropout(remote_dropout(params))

    def forward(self, rows: Tensor, seed: int | None = None) -> Tensor:
        """The vectors [n, dim] of local row numbers [n], on the CPU; with a seed, after dropout."""
        return self.drop(super().forward(rows.to(self.weight.device)), seed).cpu()


class Decoder(DecoderShard):
    """Logits of some tokens on a parameter server's GPU, or CPU, with dropout of the hidden states."""

    def __init__(self, params: Params, spec: ShardSpec) -> None:
        initializer = Uniform(derive_seed(params.seed, 1), params.init_range)
        super().__init__(spec, params.hidden_dim, initializer, params.precision)
        self.drop = SeededDropout(remote_dropout(params))

    def forward(self, hidden: Tensor, seed: int | None = None) -> Tensor:
        """The logits [n, size] of hidden states [n, h], on the CPU; with a seed, after dropout."""
        return super().forward(self.drop(hidden.to(self.weight.device), seed)).cpu()


def remote_dropout(params: Params) -> float:
    """The dropout rate on the servers; a custom recurrent part replaces all dropout."""
    return 0.0 if params.model else params.dropout


class RNNModel(nn.Module):
    """A recurrent language model: embedding tables and decoders on parameter servers, the recurrent part on `device`.

    Subclasses can override `forward`, and use `look_up` and `decode`.
    """

    def __init__(
        self,
        emb_table_rrefs: Sequence[rpc.RRef[EmbeddingTable]],
        rnn: nn.Module,
        decoder_rrefs: Sequence[rpc.RRef[Decoder]],
        *,
        device: torch.device = _CPU,
    ) -> None:
        super().__init__()
        self.emb_table_rrefs = emb_table_rrefs
        self.rnn = rnn
        self.decoder_rrefs = decoder_rrefs
        self.device = device

    def forward(self, tokens: Tensor, hidden: State | None) -> tuple[Tensor, State]:
        """Logits [t, b, vocabulary], on the CPU, of the next tokens after tokens [t, b], and the final state."""
        emb = self.look_up(tokens)
        output, after = self.rnn(emb, hidden)
        return self.decode(output), after

    def look_up(self, tokens: Tensor) -> Tensor:
        """The vectors [t, b, dim] of tokens [t, b]. Each occurrence of a token is sent, and has a dropout mask.

        Every table is called, even with no rows, so that each has a gradient in every step.
        """
        ids, tables = tokens.flatten().cpu(), self.emb_table_rrefs
        owners = ids % len(tables)
        by_owner = torch.argsort(owners, stable=True)
        sizes = [int(size) for size in torch.bincount(owners, minlength=len(tables))]
        local_rows = torch.split(ids[by_owner] // len(tables), sizes)
        requests = zip(tables, local_rows, self._dropout_seeds(len(tables)), strict=True)
        replies = [remote_method_async(EmbeddingTable.forward, *request) for request in requests]
        with span("look-up", "communication"):
            vectors = torch.cat([reply.wait() for reply in replies])
        position = torch.empty_like(by_owner)
        position[by_owner] = torch.arange(len(by_owner))
        return F.embedding(position.view_as(tokens), vectors).to(self.device)

    def decode(self, output: Tensor) -> Tensor:
        """The logits [t, b, vocabulary] of hidden states [t, b, h]. All decoders use the same dropout mask."""
        hidden = output.flatten(0, 1).cpu()
        (seed,) = self._dropout_seeds(1)
        answers = [remote_method_async(Decoder.forward, part, hidden, seed) for part in self.decoder_rrefs]
        with span("decoder", "communication"):
            logits = [answer.wait() for answer in answers]
        sizes = [part.shape[1] for part in logits]
        columns = logit_columns(torch.arange(sum(sizes)), sizes)
        return torch.cat(logits, 1)[:, columns].view(*output.shape[:2], sum(sizes))

    def parameter_rrefs(self) -> list[rpc.RRef[nn.Parameter]]:
        """References to all parameters, remote and local, for torch's DistributedOptimizer."""
        tables = [one for rref in self.emb_table_rrefs for one in remote_method(parameter_references, rref)]
        decoders = [one for rref in self.decoder_rrefs for one in remote_method(parameter_references, rref)]
        return [*tables, *parameter_references(self.rnn), *decoders]

    def _dropout_seeds(self, count: int) -> list[int] | list[None]:
        """Seeds from this process's random state, which checkpoints contain; None in evaluation."""
        return [int(seed) for seed in torch.randint(2**63 - 1, (count,))] if self.training else [None] * count


class TutorialModel(nn.Module):
    """The losses of an `RNNModel`, which the trainer computes from all logits."""

    def __init__(self, params: Params, rnn_model: RNNModel) -> None:
        super().__init__()
        self.rnn_model = rnn_model
        self._precision: Precision = params.precision

    def forward(self, batch: Segment, state: State | None) -> tuple[Tensor, State]:
        """The loss [t · b] of each token, and the final state."""
        with autocast(self._precision, self.rnn_model.device):
            logits, after = self.rnn_model(batch.inputs, state)
        return token_losses(logits.flatten(0, 1), batch.targets.flatten()), after
