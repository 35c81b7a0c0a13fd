"""Checks of `embedding-ddp` jobs before the gang starts. Torch-free."""

from rolecall.kit import Role
from rolecall.kit.builders import check_builder
from rolecall.kit.params import require_shares
from rolecall.kit.tables.opening import open_table_source
from rolecall.kit.tables.params import SyntheticData
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
    if not isinstance(params.data, SyntheticData):
        open_table_source(params.data, params.seed).require_columns()
