"""Checks of `rnn-lm` jobs before the gang starts. Torch-free."""

from rolecall.kit import Role
from rolecall.kit.builders import check_builder
from rolecall.kit.params import check_precision, require_shares
from rolecall.kit.text.reading import check_text
from rolecall.workloads.rnn_lm.params import Params


def check_counts(params: Params, counts: dict[Role, int]) -> None:
    """Raises `ValueError` if a trainer would get no stream of the text, or a server no token of a synthetic one."""
    require_shares(params.batch_size, counts[Role.TRAINER])
    servers, synthetic = counts[Role.PARAMETER_SERVER], params.text.synthetic
    if synthetic is not None and synthetic.vocabulary < servers:
        raise ValueError(
            f"text.synthetic.vocabulary is {synthetic.vocabulary} for {servers} parameter servers; "
            f"set it to {servers} or more, or use at most {synthetic.vocabulary} servers"
        )


def check_node(params: Params, role: Role) -> None:
    """Raises `InputError` for a device without the precision; in a trainer also for no text or a forbidden model."""
    check_precision(params.precision)
    if role is not Role.TRAINER:
        return
    if params.model is not None:
        check_builder(params.model)
    check_text(params.text)
