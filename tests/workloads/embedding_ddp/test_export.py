# pyright: standard
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.kit.tables.tables import csv

from rolecall.kit.tables.encoding import stable_hash
from rolecall.spec.errors import InputError
from rolecall.workloads.embedding_ddp.build import make_dense
from rolecall.workloads.embedding_ddp.export import write_export, write_weights
from rolecall.workloads.embedding_ddp.model import load, pool

from .tables import opened, params

_USER = """
import json, sys
from model import load
rows = json.load(open(sys.argv[1]))
model = load(".")
print(json.dumps([model.predict(rows).tolist(), model.classes, "rolecall" in sys.modules]))
"""


_THEIRS = """
import torch
from torch import nn
def wide(inputs, classes=1, width=4):
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, classes))
def narrow(inputs):
    return nn.Linear(inputs, 2)
class Buffered(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool):
            self.register_buffer(f"a_{dtype}".replace(".", "_"), torch.ones(3, dtype=dtype))
        self.layers = nn.Sequential(nn.Linear(inputs, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    def forward(self, x):
        return self.layers(x)
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own builders, allowed."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "their_layers.py").write_text(_THEIRS)
    monkeypatch.setenv("ROLECALL_PLUGINS", str(folder))
    monkeypatch.setattr(sys, "path", sys.path[:])
    # An earlier test's module of that name comes from that test's folder, which this one doesn't allow.
    monkeypatch.delitem(sys.modules, "their_layers", raising=False)
    return folder


def test_a_hash_never_changes() -> None:
    assert [stable_hash(text) for text in ("", "é")] == [13020603013274838756, 3394012004367669963]


@pytest.mark.parametrize(
    ("pooling", "label"),
    [
        *((pooling, {}) for pooling in ("sum", "mean", "none")),
        ("sum", {"classes": [1, 0, "unseen"]}),
        ("sum", {"numeric": True}),
    ],
)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.slow
def test_a_fresh_process_gives_the_scores_of_training(
    tmp_path: Path, plugins: Path, pooling: str, label: dict[str, Any], own: bool
) -> None:
    changes = {"model": {"builder": "their_layers:wide", "arguments": {"width": 6}}, "hidden": [128, 64]} if own else {}
    lines = [f"{i % 2},{'ab|c?'[i % 5]}|x{i % 3},{i if i % 4 else ''},h{i}" for i in range(40)]
    path = csv(tmp_path / "a.csv", *lines, header="y,c,n,h")
    data = {
        "test": str(path),
        "label": {"column": "y", **label},
        "categorical": [
            {"column": "c", "separator": "|", "max_values": 3},
            {"column": "h", "ids": "hash", "buckets": 5},
        ],
        "numeric": [{"column": "n", "log": True}, {"column": "n", "transform": "buckets", "buckets": 4}],
    }
    given = params(path, data=data, pooling=pooling, batch_size=64, precision="float64", **changes)
    dataset = opened(tmp_path, given)
    torch.manual_seed(0)
    table = torch.randn(dataset.table.columns.num_ids, 3, dtype=torch.float64)
    dense = make_dense(given, dataset.dense_inputs, dataset.classes).double()
    (batch,) = dataset.eval_batches("test", 0, 1)
    with torch.no_grad():
        outputs = dense(pool(F.embedding(batch.ids, table), batch), batch.numeric)
    expected = {"binary": torch.sigmoid, "classes": lambda one: one.softmax(1), "number": lambda one: one}[
        given.target
    ](outputs)

    archive = write_export(tmp_path, dataset, given, table.split(7), dense)
    with zipfile.ZipFile(archive) as unzipped:
        unzipped.extractall(tmp_path / "user")
    rows = [dict(zip("ycnh", line.split(","), strict=True)) for line in lines]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    command = [sys.executable, "-P", "-c", "import sys; sys.path.insert(0, '.')\n" + _USER, str(tmp_path / "rows.json")]
    done = subprocess.run(
        command,
        cwd=tmp_path / "user",
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin", "PYTHONPATH": str(plugins)},
    )
    scores, classes, sees_rolecall = json.loads(done.stdout)
    assert not sees_rolecall
    assert classes == [str(one) for one in label.get("classes", [])]
    assert f"[rows{', classes' if classes else ''}]: " in (tmp_path / "user" / "README.md").read_text()
    torch.testing.assert_close(torch.tensor(scores, dtype=torch.float64), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_buffers_keep_their_dtypes(tmp_path: Path, plugins: Path, precision: str) -> None:
    """The integer of BatchNorm, among others, and a first tensor that isn't a weight."""
    path = csv(tmp_path / "a.csv", "1,a,1", "0,b,2")
    model = {"builder": "their_layers:Buffered"}
    given = params(path, model=model, hidden=[128, 64], precision=precision)
    dataset, dtype = opened(tmp_path, given), getattr(torch, precision)
    dense = make_dense(given, dataset.dense_inputs, dataset.classes).to(dtype)
    table = torch.randn(dataset.table.columns.num_ids, 3, dtype=dtype)
    with zipfile.ZipFile(write_export(tmp_path, dataset, given, table.split(2), dense)) as unzipped:
        unzipped.extractall(tmp_path / "user")
    found = load(tmp_path / "user")
    assert torch.equal(found.table, table)
    assert {value.dtype for value in found.dense.buffers()} > {torch.int64, torch.bool, dtype}
    for name, value in dense.state_dict().items():
        assert torch.equal(found.dense.state_dict()[name], value), name


def test_a_table_of_another_dtype_or_size_is_not_written(tmp_path: Path) -> None:
    table, path = torch.zeros(3, 2), tmp_path / "weights"
    with pytest.raises(ValueError, match=r"has dtype torch\.float32, a block of it torch\.float64"):
        write_weights(path, table, [table.double()], {})
    with pytest.raises(ValueError, match="has 3 rows, its blocks 2"):
        write_weights(path, table, [table[:2]], {})


def test_layers_with_outputs_that_do_not_fit_the_label(tmp_path: Path, plugins: Path) -> None:
    given = params(tmp_path / "a.csv", model={"builder": "their_layers:narrow"}, hidden=[128, 64])
    with pytest.raises(InputError, match=r"their_layers:narrow .* returned the shape \[2, 2\]; it must be \[2\]"):
        make_dense(given, 4, 0)
    with pytest.raises(InputError, match=r"their_layers:narrow can't be called with {}"):
        make_dense(given, 4, 2)
