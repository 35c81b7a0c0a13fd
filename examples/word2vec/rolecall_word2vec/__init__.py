"""`word2vec`: skip-gram with negative sampling (Mikolov et al., 2013) on parameter servers. Torch-free."""

from typing import Annotated, Literal

from pydantic import Field

from rolecall.kit import Role, RoleCount, Workload
from rolecall.kit.declarations import EVALUATED_LOSS, TRAINING
from rolecall.kit.params import BatchSize, SparseAdagrad, TrainingParams
from rolecall.kit.text.params import Text


class Params(TrainingParams):
    """The parameters of a `word2vec` job."""

    text: Text
    """The text and its tokenization."""
    dim: Annotated[int, Field(ge=1, le=4096)] = 64
    """Dimension of the word vectors."""
    window: Annotated[int, Field(ge=1, le=64)] = 5
    """Maximum distance between two neighbors, in words."""
    negatives: Annotated[int, Field(ge=1, le=64)] = 5
    """Number of random words for each pair of neighbors."""
    batch_size: BatchSize = 4096
    """Pairs of neighbors per step over all trainers; each trainer processes an equal share."""
    optimizer: SparseAdagrad = SparseAdagrad(name="adagrad", lr=0.2)
    """Optimizer of both tables."""
    precision: Literal["float32", "float64"] = "float32"
    """Data type of all weights; `float64` is for parity tests."""


WORKLOAD = Workload(
    name="word2vec",
    summary="Word vectors: two tables on parameter servers, skip-gram with negative sampling in trainers",
    package=__name__,
    params=Params,
    roles={Role.PARAMETER_SERVER: RoleCount(default=1), Role.TRAINER: RoleCount(default=2)},
    metrics=(*TRAINING, EVALUATED_LOSS),
    process_group=(Role.TRAINER,),
)
