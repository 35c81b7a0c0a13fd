"""A parameter server holds shards of embedding and decoder; created by the first trainer, called by all."""

from rolecall.kit.parameter_server import serve as run

__all__ = ["run"]
