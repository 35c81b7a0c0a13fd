"""A gang of one process, for the parts of the model on both sides of RPC."""

from tests.kit.parameter_server.conftest import context, gang

__all__ = ["context", "gang"]
