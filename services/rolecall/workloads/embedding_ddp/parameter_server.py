"""A parameter server holds one shard of the embedding table; created by the driver, called by the trainers."""

from rolecall.kit.parameter_server import serve as run

__all__ = ["run"]
