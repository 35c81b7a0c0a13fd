"""Imports that the fork server of `rolecall.testing.gang` does once for all processes of gangs."""

# ruff: noqa: E402 - imports can start threads, which would have heaps of their own
from rolecall.runtime.heap import share_one_heap

share_one_heap()

import torch._dynamo  # noqa: F401 # pyright: ignore[reportUnusedImport]
import torchmetrics.classification  # noqa: F401 # pyright: ignore[reportUnusedImport]

import rolecall.testing.gang  # noqa: F401 # pyright: ignore[reportUnusedImport]
from rolecall.spec.role import Role
from rolecall.worker.fork_server import import_built_in

for role in Role:
    import_built_in(role)
