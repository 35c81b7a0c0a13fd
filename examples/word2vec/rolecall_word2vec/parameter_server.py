"""A parameter server holds shards of both tables, which the first trainer makes and all trainers call."""

from rolecall.kit.parameter_server import serve as run

__all__ = ["run"]
