"""`rnn-lm`: a recurrent language model with embedding and decoder on parameter servers and the LSTM in DDP.

After the second half of the PyTorch tutorial "Getting Started with Distributed RPC Framework". Embedding and
decoder grow with the vocabulary and are on the parameter servers; the LSTM is in the trainers.

`params`: the parameters. `check`: checks before the gang starts. `build`: the recurrent part, the modules on the
servers, and the updates. `remote`: the trainers' calls of the servers, in the built-in form and in the tutorial's.
`model`: the model, shared with exports. `training`: the loop. `export`: the exported archive. This file, `params` and
`check` never import torch.
"""

from rolecall.kit import Role, RoleCount, Workload
from rolecall.kit.declarations import EVALUATED_LOSS, PERPLEXITY, TRAINING
from rolecall.workloads.rnn_lm.check import check_counts, check_node
from rolecall.workloads.rnn_lm.params import Params

__all__ = ["WORKLOAD", "Params"]

WORKLOAD = Workload(
    name="rnn-lm",
    summary="A language model: embedding and decoder on parameter servers, the LSTM between them in DDP trainers",
    package=__name__,
    params=Params,
    roles={
        Role.PARAMETER_SERVER: RoleCount(default=1, least=1, most=64),
        Role.TRAINER: RoleCount(default=1, least=1, most=256),
    },
    metrics=(
        *TRAINING,
        EVALUATED_LOSS,
        PERPLEXITY,
    ),
    rpc=True,
    process_group=(Role.TRAINER,),
    # They compute the decoder's matrix product, the model's largest, wherever the loss is computed.
    busy=frozenset({Role.PARAMETER_SERVER}),
    check_counts=check_counts,
    check_node=check_node,
)
