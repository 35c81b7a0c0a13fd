"""`kmeans`: clusters the rows of CSV files over several trainers. Torch-free, because the master imports this file."""

from typing import Annotated

from pyarrow import csv
from pydantic import Field

from rolecall.kit import InputError, Role, RoleCount, Workload
from rolecall.kit.declarations import TRAINING
from rolecall.kit.files import find
from rolecall.kit.params import Count, Names, Paths, TrainingParams


class Params(TrainingParams):
    """The parameters of a `kmeans` job. An epoch is one iteration."""

    data: Paths
    """CSV files with a header line: paths, globs or fsspec URLs."""
    columns: Annotated[Names, Field(min_length=1)]
    """Names of the numeric columns, the coordinates of a point."""
    clusters: Count
    """Number of clusters."""


def check_node(params: Params, role: Role) -> None:
    """Called on each worker's node before the gang's rendezvous; raises `InputError` for a missing file or column."""
    for file in find(params.data):
        with file.open() as stream:
            names = csv.open_csv(stream).schema.names
        if missing := [name for name in params.columns if name not in names]:
            raise InputError(f"{file.url} has no column {', '.join(missing)}; its columns are: {', '.join(names)}")


WORKLOAD = Workload(
    name="kmeans",
    summary="k-means clustering (Lloyd's algorithm) over trainers that share the rows",
    package=__name__,
    params=Params,
    roles={Role.TRAINER: RoleCount(default=2)},
    metrics=TRAINING,
    rpc=False,
    process_group=(Role.TRAINER,),
    check_node=check_node,
)
