"""A trainer looks up the vectors of its pairs of words on the servers, and sends the gradients of these rows."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn.functional import logsigmoid

from rolecall.kit import Role
from rolecall.kit import parameter_server as ps
from rolecall.kit.data_order import DataOrder, derive_seed, share_of
from rolecall.kit.export import write_archive
from rolecall.kit.loop import EvalSplit
from rolecall.kit.optimizers import sparse_optimizer
from rolecall.kit.precision import weight_dtype
from rolecall.kit.same_input import require_same_in_group
from rolecall.kit.text.corpus import Corpus, open_corpus
from rolecall.kit.worker import WorkerContext

from . import Params


class Batch(NamedTuple):
    """One trainer's share of a global batch of `rows` pairs of neighbors."""

    words: Tensor  # [b]
    others: Tensor  # [b, 1 + negatives]: the neighbor, then random words
    rows: int


def run(context: WorkerContext[Params]) -> None:
    """Read the text, create two tables on the servers, and train; the first trainer reports the result."""
    params, corpus = context.params, open_corpus(context.params.text, context.cache)
    require_same_in_group(corpus.fingerprint, Role.TRAINER, "texts")
    tables = [  # a vector of each word as the center of a window, and one as a neighbor
        ps.sharded_embedding(
            name,
            corpus.vocabulary_size,
            dim=params.dim,
            initializer=ps.Uniform(derive_seed(params.seed, table), bound=0.5 / params.dim),
            optimizer=sparse_optimizer(params.optimizer),
            servers=range(context.count(Role.PARAMETER_SERVER)),
            dtype=weight_dtype(params.precision),
        )
        for table, name in enumerate(("words", "neighbors"))
    ]
    SkipGram(context, corpus, ps.share_shards(context, tables)).play()


class SkipGram(ps.ShardedTrainingLoop[Batch, Params]):
    """One trainer's share of a job. The servers hold and update all weights."""

    def __init__(self, context: WorkerContext[Params], corpus: Corpus, shards: ps.Shards) -> None:
        super().__init__(context, shards, ps.ServerOptimizers(shards, context.role_rank))
        self._corpus = corpus
        self._words = ps.ShardedEmbedding(shards.of("words"))
        self._neighbors = ps.ShardedEmbedding(shards.of("neighbors"))

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in one pass over the text."""
        return -(-len(self._corpus.tokens("train")) // self.params.batch_size)

    def batches(self, epoch: int, done: int) -> Iterator[Batch]:
        """This trainer's shares of the epoch's batches."""
        return batches(self.params, self._corpus.tokens("train"), (self.rank, self.world), epoch, done)

    def samples(self, batch: Batch) -> int:
        """Pairs of all trainers."""
        return batch.rows

    def losses(self, batch: Batch) -> Tensor:
        """The loss [b] of each pair, which is low if the neighbor's score is high and those of random words are low."""
        scores = torch.einsum("bd,bnd->bn", self._words(batch.words), self._neighbors(batch.others))
        return -logsigmoid(scores[:, 0]) - logsigmoid(-scores[:, 1:]).sum(1)

    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        """The mean loss of a split over all trainers; None if the job has no such split."""
        if not len(tokens := self._corpus.tokens(split)):
            return None
        return {f"{split}_loss": self.mean_loss(batches(self.params, tokens, (self.rank, self.world), 0, 0))}

    def export(self) -> None:
        """The first trainer stores the vectors [vocabulary, dim], and the tokenizer that maps words to rows."""
        if self.rank == 0:
            vectors = torch.cat(list(self.shards.blocks("words", "weight")))
            files = {"vectors.safetensors": save({"vectors": vectors}), "tokenizer.json": self._corpus.tokenizer_json}
            self.context.artifacts.put("model.zip", write_archive(self.context.workdir.scratch, "model.zip", files))


def batches(params: Params, tokens: Tensor, share: tuple[int, int], epoch: int, done: int) -> Iterator[Batch]:
    """The share of trainer (rank, world) in each global batch of an epoch, which does not depend on the share."""
    order = DataOrder(len(tokens), params.batch_size, params.seed)
    frequencies = torch.bincount(tokens).double().pow(0.75)
    for step in range(done, order.steps_per_epoch):
        rows = order.batch_rows(step)
        generator = torch.Generator().manual_seed(derive_seed(derive_seed(params.seed, epoch), step))
        offset = torch.randint(1, params.window + 1, (rows,), generator=generator)
        offset *= torch.randint(2, (rows,), generator=generator) * 2 - 1
        negatives = torch.multinomial(frequencies, rows * params.negatives, replacement=True, generator=generator)
        positions, mine = torch.from_numpy(order.share(epoch, step, *share)), share_of(rows, *share)
        neighbors = tokens[(positions + offset[mine]) % len(tokens)].long()
        yield Batch(tokens[positions].long(), torch.cat([neighbors[:, None], negatives.view(rows, -1)[mine]], 1), rows)
