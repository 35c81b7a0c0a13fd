"""A stage, which holds one part of the model and answers the driver's calls."""

from rolecall.kit.parameter_server import serve as run

__all__ = ["run"]
