"""Weights that live on parameter servers, apart from the trainers that compute with them.

`init` says which rows a server holds and what they begin with, `shard` is what runs on the server, `remote` what
trainers call, `protocols` how a step's gradients become new weights, `loop` the trainers' loop, `serve` the servers'
`run`.
"""

from rolecall.kit.parameter_server.init import Normal, Part, Uniform, initial_rows
from rolecall.kit.parameter_server.loop import ShardedTrainingLoop, make_local
from rolecall.kit.parameter_server.protocols import ServerOptimizers, TutorialProtocol, UpdateProtocol
from rolecall.kit.parameter_server.remote import ShardedEmbedding, Shards, make_shards, share_shards
from rolecall.kit.parameter_server.serve import run as serve
from rolecall.kit.parameter_server.shard import ShardedModule, sharded_embedding

__all__ = [
    "Normal",
    "Part",
    "ServerOptimizers",
    "ShardedEmbedding",
    "ShardedModule",
    "ShardedTrainingLoop",
    "Shards",
    "TutorialProtocol",
    "Uniform",
    "UpdateProtocol",
    "initial_rows",
    "make_local",
    "make_shards",
    "serve",
    "sharded_embedding",
    "share_shards",
]
