"""`rnn-lm`: a recurrent language model with its vocabulary on parameter servers and its LSTM in DDP.

After the second half of the PyTorch tutorial "Getting Started with Distributed RPC Framework". Embedding table and
decoder, whose size grows with the vocabulary, live on the parameter servers; the LSTM between them in the trainers.

Input: `params` says what is read, `check` looks at it before the gang meets, `streams` hands it out. Model: `model`
(also what users get), `export`. On the servers: `vocabulary`. In the trainers: `remote` calls the
decoder there, `recurrent` makes the layers between, `training` goes through the text.
This file, `params` and `check` never import torch.
"""

from rolecall.spec.role import Role
from rolecall.spec.workload import RoleCount, Workload
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
    rpc=True,
    process_group=(Role.TRAINER,),
    check_counts=check_counts,
    check_node=check_node,
)
