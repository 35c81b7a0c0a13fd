"""The training loop of one trainer; all trainers run it in lockstep."""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from rolecall.kit.data_order import share_of
from rolecall.kit.loop import EvalSplit
from rolecall.kit.parameter_server import ShardedTrainingLoop, Shards, make_local
from rolecall.kit.precision import weight_dtype
from rolecall.kit.text.batches import Segment, TokenStreams, open_streams
from rolecall.kit.text.corpus import SPLITS, Corpus
from rolecall.kit.text.scores import perplexity
from rolecall.kit.worker import WorkerContext
from rolecall.workloads.rnn_lm.build import initial_state, make_model, make_recurrent
from rolecall.workloads.rnn_lm.export import write_model, write_sample
from rolecall.workloads.rnn_lm.model import State
from rolecall.workloads.rnn_lm.params import Params

_STATE = "state/"


class Training(ShardedTrainingLoop[Segment, Params]):
    """One trainer's share of an `rnn-lm` job.

    The recurrent state carries over between segments of an epoch, and with a random initial one between epochs.
    """

    def __init__(self, context: WorkerContext[Params], corpus: Corpus, shards: Shards) -> None:
        params = context.params
        recurrent = make_local(context, lambda: make_recurrent(params), weight_dtype(params.precision))
        model = make_model(context, shards, recurrent)
        self._model, self._evaluated = model.train, model.evaluate
        super().__init__(context, shards, model.protocol, recurrent)
        self._corpus = corpus
        self._columns = share_of(params.batch_size, self.rank, self.world)
        self._streams = _open_splits(corpus, params)
        self._begins_from_zero = params.initial_state == "zero"
        self._state = self._on_device(initial_state(params, self._columns))

    @property
    def steps_per_epoch(self) -> int:
        return self._streams["train"].steps

    def batches(self, epoch: int, done: int) -> Iterator[Segment]:
        """The segments of this trainer's streams; the same in every epoch."""
        return self._streams["train"].segments(self._columns, done)

    def samples(self, batch: Segment) -> int:
        return batch.global_tokens

    def losses(self, batch: Segment) -> Tensor:
        """The loss [t · b] of each token. Truncated BPTT: gradients end at the start of the segment."""
        losses, state = self._model(batch, None if batch.first and self._begins_from_zero else self._state)
        self._state = tuple(one.detach() for one in state)
        return losses

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        """Loss (nats per token) and perplexity over all trainers' streams."""
        if split not in self._streams:
            return None
        loss = self._mean_loss(self._streams[split])
        return {f"{split}_loss": loss, f"{split}_perplexity": perplexity(loss)}

    @torch.no_grad()
    def _mean_loss(self, streams: TokenStreams) -> float:
        self._evaluated.eval()
        total, state = torch.zeros((), dtype=torch.float64), None
        for batch in streams.segments(self._columns):
            losses, state = self._evaluated(batch, state)
            total += losses.double().sum().cpu()
        self._evaluated.train()
        dist.all_reduce(total)
        return float(total) / (streams.count * streams.length)

    def export(self) -> None:
        files: list[Path] = []
        if self.rank == 0:
            weights = {f"recurrent.{name}": value.cpu() for name, value in self._local.state_dict().items()}
            for module, parameter in (("embedding", "weight"), ("decoder", "weight"), ("decoder", "bias")):
                weights[f"{module}.{parameter}"] = torch.cat(list(self.shards.blocks(module, parameter)))
            for write in (write_model, write_sample) if self.params.sample.tokens else (write_model,):
                files.append(write(self.context.workdir.scratch, self.params, self._corpus, weights))
        # Before the upload, which waits for an unavailable master: only this rank has to.
        dist.barrier()
        for path in files:
            self.context.artifacts.put(path.name, path)

    def trainer_state(self) -> dict[str, Tensor]:
        """The initial recurrent state of the next segment."""
        return {f"{_STATE}{index}": one for index, one in enumerate(self._state or ())}

    def restore_trainer_state(self, tensors: dict[str, Tensor]) -> None:
        count = sum(key.startswith(_STATE) for key in tensors)
        self._state = self._on_device(tuple(tensors[f"{_STATE}{index}"] for index in range(count)))

    def _on_device(self, state: State | None) -> State | None:
        return tuple(one.to(self.context.device) for one in state) if state else None


def _open_splits(corpus: Corpus, params: Params) -> dict[str, TokenStreams]:
    """The streams of each split that the job has."""
    given = {split: (corpus.tokens(split), corpus.targets(split)) for split in SPLITS}
    return {
        split: open_streams(tokens, params.batch_size, params.bptt, split, targets=targets)
        for split, (tokens, targets) in given.items()
        if len(tokens) or split == "train"
    }
