"""What can be decided about an `rnn-lm` job before its gang meets. Torch-free."""

from rolecall.kit.builders import check_builder
from rolecall.kit.params import require_shares
from rolecall.kit.text.reading import check_text
from rolecall.spec.role import Role
from rolecall.workloads.rnn_lm.params import Params


def check_counts(params: Params, counts: dict[Role, int]) -> None:
    """Raises `ValueError` if a trainer would have no stream of the text."""
    require_shares(params.batch_size, counts[Role.TRAINER])


def check_node(params: Params, role: Role) -> None:
    """On a trainer's node, raises `InputError` unless every file is text, and the model one that the job may bring."""
    if role is not Role.TRAINER:
        return
    if params.model is not None:
        check_builder(params.model)
    check_text(params.text)
