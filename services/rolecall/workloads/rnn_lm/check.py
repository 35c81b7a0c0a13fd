"""What can be decided about an `rnn-lm` job before its gang meets. Torch-free."""

from rolecall.spec import workload
from rolecall.spec.role import Role
from rolecall.workloads.builders import check_builder
from rolecall.workloads.check import require_shares
from rolecall.workloads.rnn_lm.params import Params
from rolecall.workloads.text.check import check_text


def check_counts(params: workload.Params, counts: dict[Role, int]) -> None:
    """Raises `ValueError` if a trainer would have no stream of the text."""
    assert isinstance(params, Params)
    require_shares(params.batch_size, counts[Role.TRAINER])


def check_node(params: workload.Params, role: Role) -> None:
    """On a trainer's node, raises `InputError` unless every file is text, and the model one that the job may bring."""
    assert isinstance(params, Params)
    if role is not Role.TRAINER:
        return
    if params.model is not None:
        check_builder(params.model)
    check_text(params.text)
