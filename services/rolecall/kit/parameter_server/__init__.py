"""Sharded weights on parameter servers.

`initialization`: rows and initial values of each shard. `shard`: the servers' side; `serve` is their `run`. `rows`:
gradients of rows on the servers, and optimizer steps on these rows. `remote`: the trainers' side. `lookup`: the
distinct rows of a look-up, and their gradients. `bags`: embedding bags, pooled on the servers. `decoder`: a linear
layer over many classes, with its loss. `protocols`: application of gradients. `loop`: the trainers' loop.
"""

from rolecall.kit.parameter_server.bags import (
    EmbeddingBagShard,
    RemoteEmbeddingBag,
    ShardedEmbeddingBag,
    require_bags,
)
from rolecall.kit.parameter_server.decoder import DecoderShard, RemoteDecoder, Send, logit_columns, token_losses
from rolecall.kit.parameter_server.initialization import (
    EmbeddingShard,
    Normal,
    ShardSpec,
    Uniform,
    fill_standard_normal,
    initial_rows,
)
from rolecall.kit.parameter_server.lookup import DistinctRows, RequestedRows
from rolecall.kit.parameter_server.loop import ShardedTrainingLoop, make_local
from rolecall.kit.parameter_server.protocols import (
    OverlappedUpdates,
    ProtocolsInTurn,
    ServerOptimizers,
    TutorialProtocol,
    UpdateProtocol,
    parameter_references,
)
from rolecall.kit.parameter_server.remote import (
    ShardedEmbedding,
    ShardReference,
    Shards,
    Update,
    make_shards,
    share_shards,
)
from rolecall.kit.parameter_server.rows import bag_sizes, bags_of
from rolecall.kit.parameter_server.shard import Shard, ShardedModule, serve, sharded_embedding

__all__ = [
    "DecoderShard",
    "DistinctRows",
    "EmbeddingBagShard",
    "EmbeddingShard",
    "Normal",
    "OverlappedUpdates",
    "ProtocolsInTurn",
    "RemoteDecoder",
    "RemoteEmbeddingBag",
    "RequestedRows",
    "Send",
    "ServerOptimizers",
    "Shard",
    "ShardReference",
    "ShardSpec",
    "ShardedEmbedding",
    "ShardedEmbeddingBag",
    "ShardedModule",
    "ShardedTrainingLoop",
    "Shards",
    "TutorialProtocol",
    "Uniform",
    "Update",
    "UpdateProtocol",
    "bag_sizes",
    "bags_of",
    "fill_standard_normal",
    "initial_rows",
    "logit_columns",
    "make_local",
    "make_shards",
    "parameter_references",
    "require_bags",
    "serve",
    "sharded_embedding",
    "share_shards",
    "token_losses",
]
