# pyright: standard
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.measured import increases, measured
from torch import nn

from rolecall.runtime.blobs import SharedBlobs
from rolecall.runtime.checkpoint import (
    Checkpoints,
    flatten_optimizer,
    random_state,
    restore_optimizer,
    restore_random_state,
)
from rolecall.spec.errors import BlobsUnavailable, CheckpointError, DamagedCheckpoint
from rolecall.spec.metric import CHECKPOINT_BYTES, CHECKPOINT_SECONDS, CHECKPOINTS
from rolecall.spec.plan import CheckpointManifest


class Recorded:
    def __init__(self) -> None:
        self.manifests: list[CheckpointManifest] = []

    def record_checkpoint(self, manifest: CheckpointManifest) -> None:
        self.manifests.append(manifest)


def checkpoints(folder: Path, record: Any = None) -> Checkpoints:
    (folder / "scratch").mkdir(exist_ok=True)
    return Checkpoints(SharedBlobs(str(folder / "blobs"), "job", 1), record, 1, None, folder / "scratch")


def test_what_is_saved_comes_back_and_nothing_is_left_in_scratch(tmp_path: Path) -> None:
    record = Recorded()
    store = checkpoints(tmp_path, record)
    tensors = {"a": torch.randn(3, 4), "b/0": torch.arange(5), "transposed": torch.randn(2, 3).T}
    before = measured(CHECKPOINTS, CHECKPOINT_SECONDS)
    part = store.save_part(7, "trainer-0", tensors)
    parts, seconds = increases(before, CHECKPOINTS, CHECKPOINT_SECONDS)
    assert parts == 1
    assert seconds > 0
    assert measured(CHECKPOINT_BYTES) == [part.size]
    manifest = store.commit(7, [part], {"epoch": 1})
    assert manifest is not None
    assert record.manifests == [manifest]
    loaded = store.load_part(manifest, "trainer-0")
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_damaged_part_is_refused(tmp_path: Path) -> None:
    store = checkpoints(tmp_path, Recorded())
    part = store.save_part(1, "trainer-0", {"a": torch.zeros(100)})
    blob = tmp_path / "blobs" / "job" / part.blob
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    manifest = store.commit(1, [part], {})
    assert manifest is not None
    with pytest.raises(CheckpointError, match="is damaged"):
        store.load_part(manifest, "trainer-0")


class Unavailable:
    def put(self, name: str, path: Path, sha256: str) -> None:
        raise BlobsUnavailable("the master is away")

    def record_checkpoint(self, manifest: CheckpointManifest) -> None:
        raise BlobsUnavailable("the master is away")


def test_a_checkpoint_is_skipped_while_the_blob_store_is_unavailable(tmp_path: Path) -> None:
    """Any rank may be the one that does not reach it, and its part crosses processes before the checkpoint closes."""
    skipped: list[str] = []
    record: Any = Recorded()
    whole = checkpoints(tmp_path, record)
    cut_off = Checkpoints(Unavailable(), record, 1, None, tmp_path / "scratch", on_skip=skipped.append)  # type: ignore[arg-type]
    before = measured(CHECKPOINTS)
    parts = [whole.save_part(3, "trainer-0", {}), cut_off.save_part(3, "trainer-1", {"a": torch.zeros(1)})]
    assert cut_off.commit(3, pickle.loads(pickle.dumps(parts)), {}) is None
    assert record.manifests == []
    blobs, away = SharedBlobs(str(tmp_path / "blobs"), "job", 1), Unavailable()
    late = Checkpoints(blobs, away, 1, None, tmp_path / "scratch", on_skip=skipped.append)  # type: ignore[arg-type]
    assert late.commit(4, [late.save_part(4, "trainer-0", {})], {}) is None
    assert increases(before, CHECKPOINTS) == [2], "what was not stored does not count"
    assert skipped == [
        "the checkpoint at step 3 was skipped: part 'trainer-1' was not stored: the master is away",
        "the checkpoint at step 4 was skipped: the master is away",
    ]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_part_that_is_gone_condemns_the_checkpoint_like_a_damaged_one(tmp_path: Path) -> None:
    store = checkpoints(tmp_path, Recorded())
    part = store.save_part(1, "trainer-0", {"a": torch.zeros(1)})
    (tmp_path / "blobs" / "job" / part.blob).unlink()
    manifest = store.commit(1, [part], {})
    assert manifest is not None
    with pytest.raises(DamagedCheckpoint, match="part 'trainer-0' of the checkpoint at step 1 is gone"):
        store.load_part(manifest, "trainer-0")


def test_a_part_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    store = checkpoints(tmp_path, Recorded())
    manifest = store.commit(1, [store.save_part(1, "trainer-0", {"a": torch.zeros(1)})], {})
    assert manifest is not None
    with pytest.raises(CheckpointError, match="no part 'trainer-1'; it has: trainer-0"):
        store.load_part(manifest, "trainer-1")


SPARSE = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.Adagrad, {"lr": 0.1}),
    (torch.optim.SparseAdam, {"lr": 0.1}),
]
DENSE = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.Adam, {"lr": 0.1}),
    (torch.optim.AdamW, {"lr": 0.1}),
]


@pytest.mark.parametrize(
    ("kind", "arguments", "sparse"), [(*k, True) for k in SPARSE] + [(*k, False) for k in DENSE], ids=str
)
def test_an_optimizer_goes_on_exactly_where_it_was(kind: Any, arguments: dict[str, Any], *, sparse: bool) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(20, 4, sparse=sparse, dtype=torch.float64)
    optimizer = kind(table.parameters(), **arguments)

    def steps(table: nn.Embedding, optimizer: torch.optim.Optimizer, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(5):
            optimizer.zero_grad()
            table(torch.randint(0, 20, (8,), generator=generator)).square().sum().backward()
            optimizer.step()

    steps(table, optimizer, 1)
    copy = nn.Embedding(20, 4, sparse=sparse, dtype=torch.float64)
    copy.load_state_dict(table.state_dict())
    resumed = kind(copy.parameters(), **arguments)
    restore_optimizer(resumed, {name: tensor.clone() for name, tensor in flatten_optimizer(optimizer).items()})
    steps(table, optimizer, 2)
    steps(copy, resumed, 2)
    assert torch.equal(table.weight, copy.weight)


def test_random_numbers_go_on_where_they_were() -> None:
    state = random_state(torch.device("cpu"))
    drawn = torch.rand(5)
    restore_random_state(state, torch.device("cpu"))
    assert torch.equal(torch.rand(5), drawn)


def test_tied_weights_come_back_tied(tmp_path: Path) -> None:
    def tied() -> Any:
        model: Any = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4, bias=False))
        model[1].weight = model[0].weight
        return model

    store, model = checkpoints(tmp_path, Recorded()), tied()
    part = store.save_part(1, "trainer-0", model.state_dict())
    manifest = store.commit(1, [part], {})
    assert manifest is not None
    resumed = tied()
    resumed.load_state_dict(store.load_part(manifest, "trainer-0"))
    assert resumed[0].weight is resumed[1].weight
    assert torch.equal(resumed[0].weight, model[0].weight)
