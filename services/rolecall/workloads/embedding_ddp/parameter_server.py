"""A parameter server holds one shard of the embedding table, which the master makes and the trainers call."""

from rolecall.kit.parameter_server import serve as run

__all__ = ["run"]
