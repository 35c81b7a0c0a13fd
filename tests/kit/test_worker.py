"""The names that a workload imports from the kit."""

import importlib

import pytest


@pytest.mark.parametrize(
    "module", ["rolecall.kit", "rolecall.kit.checkpoint", "rolecall.kit.worker", "rolecall.kit.parameter_server"]
)
def test_every_public_name_is_sorted_and_exists(module: str) -> None:
    imported = importlib.import_module(module)
    names = imported.__all__
    assert sorted(names, key=str.lower) == sorted(set(names), key=str.lower)
    assert all(hasattr(imported, name) for name in names)
