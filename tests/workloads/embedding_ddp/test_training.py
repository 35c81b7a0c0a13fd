# pyright: standard
"""Refusals of a trainer that has read its rows."""

import sys
from pathlib import Path
from typing import Any, cast

import pytest
from tests.kit.tables.tables import csv
from tests.own_process import worker_context

from rolecall.spec.errors import InputError
from rolecall.spec.role import Role
from rolecall.workloads.embedding_ddp.training import Training

from .tables import opened, params

_LAYERS = """
from torch import nn
def layers(inputs):
    return nn.Sequential(nn.Linear(inputs, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
"""


def test_batch_norm_with_a_single_row_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "normalized_layers.py").write_text(_LAYERS)
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "normalized_layers", raising=False)
    rows = csv(tmp_path / "a.csv", *(f"{i % 2},a,1" for i in range(5)))
    given = params(rows, model={"builder": "normalized_layers:layers"}, hidden=[128, 64])
    no_table = cast("Any", None)
    message = "the smallest batch can have 1 row for 1 trainer; change batch_size"
    with worker_context(tmp_path, given, Role.TRAINER) as context, pytest.raises(InputError, match=message):
        Training(context, opened(tmp_path, given), no_table)
