"""Checks of `embedding-ddp` jobs before the gang starts. Torch-free."""

from rolecall.kit.builders import check_builder
from rolecall.kit.params import require_shares
from rolecall.kit.tables.files import find_tables
from rolecall.kit.tables.params import SyntheticData
from rolecall.kit.tables.rows import require_columns
from rolecall.spec.role import Role
from rolecall.workloads.embedding_ddp.params import Params


def check_counts(params: Params, counts: dict[Role, int]) -> None:
    """Raises `ValueError` if a trainer would get no rows of a global batch."""
    require_shares(params.batch_size, counts[Role.TRAINER])


def check_node(params: Params, role: Role) -> None:
    """On a trainer's node, raises `InputError` for an unreadable file, a missing column, a label of the
    wrong type or a forbidden builder."""
    if role is not Role.TRAINER:
        return
    if params.model is not None:
        check_builder(params.model)
    if isinstance(params.data, SyntheticData):
        return
    for paths in params.data.sources.values():
        for file in find_tables(paths, params.data):
            require_columns(file, params.data)
