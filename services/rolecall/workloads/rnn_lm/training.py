"""One trainer's way through the text; all trainers go in step."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rolecall.kit.loop import Held, TrainingLoop
from rolecall.kit.parameter_server.protocols import UpdateProtocol
from rolecall.kit.precision import autocast, weight_dtype
from rolecall.kit.text.corpus import SPLITS, Corpus
from rolecall.runtime.checkpoint import random_state, restore_random_state
from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.runtime.data_order import share_of
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.workloads.rnn_lm.export import write_model, write_sample
from rolecall.workloads.rnn_lm.layers import RemoteDecoder, RemoteEmbedding, Shards
from rolecall.workloads.rnn_lm.model import State
from rolecall.workloads.rnn_lm.params import Params
from rolecall.workloads.rnn_lm.protocols import Synchronous, TutorialProtocol
from rolecall.workloads.rnn_lm.recurrent import make_recurrent
from rolecall.workloads.rnn_lm.streams import Segment, Streams, open_streams

_RECURRENT = "recurrent/"
_STATE = "state/"


class Training(TrainingLoop[Segment, Params]):
    """Carries the recurrent part's state from segment to segment; at an epoch's beginning it is zero."""

    def __init__(self, context: WorkerContext[Params], corpus: Corpus, shards: Shards) -> None:
        super().__init__(context)
        params = context.params
        self._corpus = corpus
        self._shards = shards
        self._rank, self._world = context.role_rank, context.count(Role.TRAINER)
        self._columns = share_of(params.batch_size, self._rank, self._world)
        self._streams = _open_all(corpus, params)
        wire = context.device if context.device.type != "cpu" and shards.all_on("cuda") else torch.device("cpu")
        self._embedding = RemoteEmbedding(shards.of("embedding"), wire)
        self._decoder = RemoteDecoder(shards.of("decoder"), wire, params.loss_at)
        self._recurrent = DistributedDataParallel(self._first_recurrent())
        self._protocol = self._update_protocol()
        self._state: State | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Segments from the text's beginning to its end."""
        return self._streams["train"].steps

    def batches(self, epoch: int, done: int) -> Iterator[Segment]:
        """This trainer's streams; the same in every epoch."""
        return self._streams["train"].segments(self._columns, done)

    def samples(self, batch: Segment) -> int:
        """Tokens."""
        return batch.global_tokens

    def train_step(self, batch: Segment) -> Tensor:
        """Truncated back-propagation through one segment.

        DDP takes the mean of the trainers' gradients and the servers do as DDP does. So each trainer's loss is the sum
        over its tokens times (trainers / tokens of the global batch): then the mean is the global batch's, however
        unequal the shares.
        """
        with dist_autograd.context() as context_id:
            losses, state = self._losses(self._recurrent, batch, None if batch.first else self._state)
            dist_autograd.backward(context_id, [losses.sum() * (self._world / batch.global_tokens)])
            self._protocol.apply(context_id, self.position.step, self.rate_factor)
        self._state = tuple(one.detach() for one in state)
        return losses.detach().mean()

    def _losses(self, recurrent: nn.Module, batch: Segment, state: State | None) -> tuple[Tensor, State]:
        """The loss [t · b] of each token, and the state after the segment."""
        vectors = self._embedding(batch.inputs).to(self.context.device)
        with autocast(self.params.precision, self.context.device):
            hidden, after = recurrent(vectors, state)
        return self._decoder.losses(hidden.flatten(0, 1), batch.targets.flatten()), after

    def score(self, split: Held) -> dict[str, float] | None:
        """Loss (nats per token) and perplexity, of all trainers' streams together."""
        if split not in self._streams:
            return None
        loss = self._mean_loss(self._streams[split])
        return {f"{split}_loss": loss, f"{split}_perplexity": math.exp(loss)}

    @torch.no_grad()
    def _mean_loss(self, streams: Streams) -> float:
        recurrent = self._recurrent.module.eval()
        total, state = torch.zeros((), dtype=torch.float64), None
        for batch in streams.segments(self._columns):
            losses, state = self._losses(recurrent, batch, state)
            total += losses.double().sum().cpu()
        recurrent.train()
        dist.all_reduce(total)
        return float(total) / (streams.count * streams.length)

    def save_parts(self, step: int) -> Sequence[CheckpointPart]:
        """Each trainer's own part; the first also has the servers write theirs."""
        from_servers = self._shards.save(step) if self._rank == 0 else []
        return [*from_servers, self.context.checkpoints.save_part(step, self._part_name(self._rank), self._tensors())]

    def load(self, manifest: CheckpointManifest) -> None:
        """Weights and optimizer state lie in the first trainer's part, the streams' state in each one's own."""
        if self._rank == 0:
            self._shards.load(manifest)
        own = self.context.checkpoints.load_part(manifest, self._part_name(self._rank))
        restore_random_state(own, self.context.device)
        self._state = self._state_in(own)
        shared = self.context.checkpoints.load_part(manifest, self._part_name(0))
        weights = {key.removeprefix(_RECURRENT): value for key, value in shared.items() if key.startswith(_RECURRENT)}
        self._recurrent.module.load_state_dict(weights)
        self._protocol.restore(shared)
        dist.barrier()

    def export(self) -> None:
        """The first trainer writes the model and its sample. The others don't wait until the files are stored: a
        master that is away may take longer to come back than a barrier waits.
        """
        files: list[Path] = []
        if self._rank == 0:
            local = self._recurrent.module.state_dict().items()
            weights = self._shards.weights() | {f"recurrent.{name}": value.cpu() for name, value in local}
            for write in (write_model, write_sample) if self.params.sample.tokens else (write_model,):
                files.append(write(self.context.workdir.scratch, self.params, self._corpus, weights))
        dist.barrier()
        for path in files:
            self.context.artifacts.put(path.name, path)

    def _first_recurrent(self) -> nn.Module:
        """All trainers begin with the same weights, but drop different units."""
        torch.manual_seed(self.params.seed)
        recurrent = make_recurrent(self.params).to(self.context.device, weight_dtype(self.params.precision))
        torch.manual_seed(self.params.seed + 1 + self._rank)
        return recurrent

    def _update_protocol(self) -> UpdateProtocol:
        if self.params.protocol == "tutorial":
            return TutorialProtocol(self.params, self._shards, self._recurrent.module)
        return Synchronous(self.params, self._rank, self._shards, self._recurrent.module)

    def _part_name(self, rank: int) -> str:
        return worker_name(Role.TRAINER, rank)

    def _tensors(self) -> dict[str, Tensor]:
        """This trainer's part: the weights are the same everywhere, so only the first writes them."""
        tensors = random_state(self.context.device)
        tensors |= {f"{_STATE}{index}": one for index, one in enumerate(self._state or ())}
        if self._rank == 0:
            tensors |= {_RECURRENT + name: value for name, value in self._recurrent.module.state_dict().items()}
            tensors |= self._protocol.state()
        return tensors

    def _state_in(self, tensors: dict[str, Tensor]) -> State | None:
        count = sum(key.startswith(_STATE) for key in tensors)
        return tuple(tensors[f"{_STATE}{index}"].to(self.context.device) for index in range(count)) or None


def _open_all(corpus: Corpus, params: Params) -> dict[str, Streams]:
    """The streams of each split that the job has."""
    given = {split: corpus.tokens(split) for split in SPLITS}
    return {
        split: open_streams(tokens, params.batch_size, params.bptt, split)
        for split, tokens in given.items()
        if len(tokens) or split == "train"
    }
