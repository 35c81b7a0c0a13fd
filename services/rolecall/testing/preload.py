"""Imports that the fork server of `rolecall.testing.gang` does once for all processes of gangs."""

import importlib
from contextlib import suppress

import torch._dynamo  # noqa: F401 # pyright: ignore[reportUnusedImport]
import torchmetrics.classification  # noqa: F401 # pyright: ignore[reportUnusedImport]

import rolecall.testing.gang  # noqa: F401 # pyright: ignore[reportUnusedImport]
from rolecall.spec.role import Role
from rolecall.worker.fork_server import import_built_in

with suppress(ModuleNotFoundError):  # Pyarrow may be missing where jobs generate their rows.
    importlib.import_module("rolecall.kit.tables.source")
for role in Role:
    import_built_in(role)
