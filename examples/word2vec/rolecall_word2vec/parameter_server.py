"""A parameter server holds shards of both tables; created by the first trainer, called by all trainers."""

from rolecall.kit.parameter_server import serve as run

__all__ = ["run"]
