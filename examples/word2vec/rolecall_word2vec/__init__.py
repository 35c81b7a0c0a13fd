"""`word2vec`: skip-gram with negative sampling (Mikolov et al., 2013) on parameter servers. Never imports torch."""

from typing import Annotated

from pydantic import Field

from rolecall.kit import Role, RoleCount, Workload
from rolecall.kit.params import BatchSize, Precision, SparseAdagrad, TrainingParams
from rolecall.kit.text.params import Text


class Params(TrainingParams):
    """The parameters of a `word2vec` job."""

    text: Text
    """The text and how it is cut into words."""
    dim: Annotated[int, Field(ge=1, le=4096)] = 64
    """The length of a word's vector."""
    window: Annotated[int, Field(ge=1, le=64)] = 5
    """A word's neighbours are at most this many words away."""
    negatives: Annotated[int, Field(ge=1, le=64)] = 5
    """Words drawn at random for each pair of neighbours."""
    batch_size: BatchSize = 4096
    """Pairs of neighbours per step over all trainers together; each takes its equal share."""
    optimizer: SparseAdagrad = SparseAdagrad(name="adagrad", lr=0.2)
    """The optimizer of both tables."""
    precision: Precision = "float32"
    """The type of all weights; `float64` is for proofs of parity."""


WORKLOAD = Workload(
    name="word2vec",
    summary="Word vectors: two tables on parameter servers, skip-gram with negative sampling in trainers",
    package=__name__,
    params=Params,
    roles={Role.PARAMETER_SERVER: RoleCount(default=1), Role.TRAINER: RoleCount(default=2)},
    process_group=(Role.TRAINER,),
)
