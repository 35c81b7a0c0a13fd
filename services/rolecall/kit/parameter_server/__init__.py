"""Sharded weights on parameter servers.

`initialization`: rows and initial values of each shard. `shard`: the servers' side; `serve` is their `run`. `remote`:
the trainers' side. `protocols`: application of gradients. `loop`: the trainers' loop.
"""

from rolecall.kit.parameter_server.initialization import Normal, ShardSpec, Uniform, initial_rows
from rolecall.kit.parameter_server.loop import ShardedTrainingLoop, make_local
from rolecall.kit.parameter_server.protocols import ServerOptimizers, TutorialProtocol, UpdateProtocol
from rolecall.kit.parameter_server.remote import ShardedEmbedding, ShardReference, Shards, make_shards, share_shards
from rolecall.kit.parameter_server.shard import ShardedModule, serve, sharded_embedding

__all__ = [
    "Normal",
    "ServerOptimizers",
    "ShardReference",
    "ShardSpec",
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
