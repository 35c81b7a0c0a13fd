"""`embedding-ddp` by a gang of processes gives what one process gives."""

import json
import math
import re
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from tests.numerics.reference import Reference, train_alone
from tests.rows import COLUMNS, write_rows

from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.role import Role
from rolecall.testing.gang import GangResult, run_gang
from rolecall.workloads.embedding_ddp.params import Params

OPTIMIZERS = {
    "sgd": ({"name": "sgd", "lr": 0.2}, {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4}),
    "adagrad": ({"name": "adagrad", "lr": 0.05}, {"name": "adam", "lr": 0.002}),
    "adam": ({"name": "sparse-adam", "lr": 0.005}, {"name": "adamw", "lr": 0.002, "weight_decay": 0.01}),
}
GANGS = {"one-server": (1, 1), "two-servers": (2, 1), "two-trainers": (1, 2), "two-of-each": (2, 2)}


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("numerics") / "rows.csv", rows=3000)


def job(table: Path, optimizers: str, **changes: Any) -> dict[str, Any]:
    sparse, dense = OPTIMIZERS[optimizers]
    return {
        "data": {
            "train": str(table),
            **COLUMNS,
        },
        "embedding_dim": 8,
        "hidden": [16, 8],
        "batch_size": 64,
        "epochs": 100,
        "seed": 3,
        "sparse_optimizer": sparse,
        "dense_optimizer": dense,
        "checkpoint_every_s": None,
        **changes,
    }


def roles(gang: str) -> dict[Role, int]:
    servers, trainers = GANGS[gang]
    return {Role.MASTER: 1, Role.PARAMETER_SERVER: servers, Role.TRAINER: trainers}


def global_losses(result: GangResult) -> torch.Tensor:
    """The mean over equal shares is the mean over the global batch."""
    return torch.tensor(list(result.losses.values()), dtype=torch.float64).mean(0)


def final_weights(result: GangResult) -> dict[str, torch.Tensor]:
    with zipfile.ZipFile(result.artifact("model.zip")) as archive:
        return load_tensors(archive.read("model.safetensors"))


def assert_same(result: GangResult, alone: Reference, tolerance: float) -> None:
    torch.testing.assert_close(
        global_losses(result), torch.tensor(alone.losses, dtype=torch.float64), rtol=0, atol=tolerance
    )
    weights = final_weights(result)
    torch.testing.assert_close(weights.pop("table"), alone.table, rtol=0, atol=tolerance)
    torch.testing.assert_close(
        {name.removeprefix("dense."): w for name, w in weights.items()}, alone.dense, rtol=0, atol=tolerance
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizers", "gang", "steps"),
    [
        ("adam", "two-of-each", 500),
        ("sgd", "two-of-each", 60),
        ("adagrad", "two-of-each", 60),
        *(("adagrad", gang, 60) for gang in GANGS if gang != "two-of-each"),
    ],
)
def test_float64_parity(table: Path, tmp_path: Path, optimizers: str, gang: str, steps: int) -> None:
    """Every optimizer in the largest gang, and every gang: neither depends on the other. One run is long."""
    params = job(table, optimizers, precision="float64", max_steps=steps)
    result = run_gang("embedding-ddp", params, roles(gang), tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-10)


@pytest.mark.slow
def test_large_messages_in_shared_memory_keep_parity(table: Path, tmp_path: Path) -> None:
    """About 60 times as many bytes as in the other tests, where messages go through sockets."""
    rows = {"rows": 4096, "columns": 8, "ids": 500, "numbers": 2, "signal": 1.0}
    data, pids, found = {"synthetic": rows, "validation": 0.0}, dict[str, int](), dict[str, set[str]]()
    params = job(table, "adagrad", data=data, precision="float64", max_steps=60, embedding_dim=64, batch_size=512)

    def look() -> None:
        while pids.keys() - found.keys() and any(map(process_exists, pids.values())):
            found.update({name: blocks for name, pid in pids.items() if (blocks := mapped_blocks(pid))})
            time.sleep(0.05)

    watcher = Thread(target=look)

    def watch(started: Mapping[str, int]) -> None:
        pids.update({name: pid for name, pid in started.items() if name != "master-0"})
        watcher.start()

    result = run_gang("embedding-ddp", params, roles("two-of-each"), tmp_path, on_start=watch)
    watcher.join()
    assert found.keys() == pids.keys(), "servers and trainers both send and receive"
    assert not any(Path(block).exists() for blocks in found.values() for block in blocks)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-10)


def process_exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def mapped_blocks(pid: int) -> set[str]:
    """The blocks of shared memory of a process, by name."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):  # It has ended.
        return set()
    return set(re.findall(r"/dev/shm/rolecall-job-1-\S+", maps))


@pytest.mark.slow
def test_the_asynchronous_updates_of_one_trainer_keep_parity(table: Path, tmp_path: Path) -> None:
    """With several trainers, their order is not determined."""
    params = job(table, "adagrad", precision="float64", max_steps=60, protocol="async")
    result = run_gang("embedding-ddp", params, roles("two-servers"), tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-10)


@pytest.mark.slow
def test_transfers_in_bfloat16_round_vectors_and_gradients(table: Path, tmp_path: Path) -> None:
    """bfloat16 has 8 significant bits, so that a rounded number differs by up to 1/256."""
    params = job(table, "adagrad", max_steps=60, transfer_precision="bfloat16")
    rounded = global_losses(run_gang("embedding-ddp", params, roles("two-of-each"), tmp_path))
    exact = torch.tensor(train_alone(Params.model_validate(params), tmp_path / "cache").losses, dtype=torch.float64)
    assert 1e-6 < (rounded - exact).abs().max() < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizers", "gang"), [*((name, "two-of-each") for name in OPTIMIZERS), ("sgd", "one-server")]
)
def test_float32_parity_over_50_steps(table: Path, tmp_path: Path, optimizers: str, gang: str) -> None:
    """Float64 shows it to be the same sum; here only its order differs."""
    params = job(table, optimizers, max_steps=50)
    result = run_gang("embedding-ddp", params, roles(gang), tmp_path)
    tolerance = 1e-6 if GANGS[gang][1] == 1 else 1e-5
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["sum", "none"])
def test_every_pooling_gives_the_single_process_weights(table: Path, tmp_path: Path, pooling: str) -> None:
    params = job(table, "adagrad", precision="float64", max_steps=40, pooling=pooling)
    result = run_gang("embedding-ddp", params, roles("two-of-each"), tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-10)


@pytest.mark.slow
def test_rows_that_are_looked_up_ahead_lack_exactly_as_many_updates(table: Path, tmp_path: Path) -> None:
    """One epoch has 38 steps; the next one begins without rows that were looked up ahead."""
    params = job(table, "adagrad", precision="float64", max_steps=60, staleness=2)
    result = run_gang("embedding-ddp", params, roles("two-of-each"), tmp_path)
    stale = train_alone(Params.model_validate(params), tmp_path / "cache")
    assert_same(result, stale, 1e-10)
    fresh = train_alone(Params.model_validate(params | {"staleness": 0}), tmp_path / "cache")
    assert max(abs(one - other) for one, other in zip(stale.losses, fresh.losses, strict=True)) > 1e-4


BAGS = {"rows": 384, "test": 40, "columns": 2, "ids": 30, "min_values": 2, "max_values": 9, "numbers": 1, "signal": 1.0}


def bags(label: str | int) -> dict[str, Any]:
    """Generated rows; all batches of 64 are full, so that trainers have equal shares."""
    return {"synthetic": BAGS | {"label": label}, "validation": 0.0}


@pytest.mark.slow
def test_servers_that_pool_bags_keep_parity_with_classes(table: Path, tmp_path: Path) -> None:
    params = job(table, "adagrad", data=bags(5), precision="float64", max_steps=30, pooling="mean", pool_at="server")
    result = run_gang("embedding-ddp", params, roles("two-of-each"), tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-10)
    assert result.result.keys() >= {"test_loss", "test_accuracy"}


@pytest.mark.slow
def test_the_tutorials_form_keeps_parity_and_continues_from_a_checkpoint(table: Path, tmp_path: Path) -> None:
    """One trainer, as with several the order of updates is random. SGD has no state that a checkpoint would lack."""
    given = job(table, "sgd", data=bags("number"), precision="float64", max_steps=20, pooling="sum")
    del given["sparse_optimizer"], given["dense_optimizer"]
    params = given | {"protocol": "tutorial", "optimizer": {"name": "sgd", "lr": 0.05}, "checkpoint_every_steps": 12}
    result = run_gang("embedding-ddp", params, roles("two-servers"), tmp_path / "whole")
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-10)
    assert result.result.keys() >= {"test_loss", "test_rmse", "test_mae"}
    manifest = CheckpointManifest.model_validate(json.loads((tmp_path / "whole/checkpoint-000012.json").read_text()))
    (tmp_path / "resumed").mkdir()
    (tmp_path / "resumed" / "blobs").symlink_to(tmp_path / "whole" / "blobs")
    expected = final_weights(result)
    resumed = run_gang("embedding-ddp", params, roles("two-servers"), tmp_path / "resumed", resume_from=manifest)
    torch.testing.assert_close(final_weights(resumed), expected, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("optimizers", OPTIMIZERS)
def test_the_tutorials_form_with_an_optimizer_for_the_table_keeps_parity(
    table: Path, tmp_path: Path, optimizers: str
) -> None:
    """Two DistributedOptimizers, and sparse gradients. Checkpoints have no state of an optimizer that is not used."""
    params = job(table, optimizers, precision="float64", max_steps=20, protocol="tutorial", checkpoint_every_steps=10)
    result = run_gang("embedding-ddp", params, roles("two-servers"), tmp_path)
    assert_same(result, train_alone(Params.model_validate(params), tmp_path / "cache"), 1e-10)
    manifest = CheckpointManifest.model_validate_json((tmp_path / "checkpoint-000010.json").read_text())
    parts = {part.name: load_tensors((tmp_path / "blobs/job" / part.blob).read_bytes()) for part in manifest.parts}
    assert parts["embedding-0"].keys() == parts["embedding-1"].keys() == {"weights/weight"}


@pytest.mark.slow
def test_unequal_and_empty_shares_keep_parity(table: Path, tmp_path: Path) -> None:
    """2,714 training rows in batches of 113 leave two rows for three trainers, which share the others unequally."""
    params = job(table, "adam", precision="float64", batch_size=113, max_steps=70)
    alone = train_alone(Params.model_validate(params), tmp_path / "cache")
    gang = {Role.MASTER: 1, Role.PARAMETER_SERVER: 2, Role.TRAINER: 3}
    result = run_gang("embedding-ddp", params, gang, tmp_path)
    torch.testing.assert_close(final_weights(result)["table"], alone.table, rtol=0, atol=1e-10)
    no_loss = {
        worker: [step for step, loss in enumerate(of, 1) if math.isnan(loss)] for worker, of in result.losses.items()
    }
    assert no_loss == {"trainer-0": [25, 50], "trainer-1": [], "trainer-2": []}


@pytest.mark.slow
def test_a_checkpoint_continues_to_the_uninterrupted_weights(table: Path, tmp_path: Path) -> None:
    params = job(table, "adam", precision="float64", max_steps=50, dropout=0.2, checkpoint_every_steps=20)
    whole = run_gang("embedding-ddp", params, roles("two-of-each"), tmp_path / "whole")
    manifest = CheckpointManifest.model_validate(json.loads((tmp_path / "whole/checkpoint-000020.json").read_text()))
    (tmp_path / "resumed").mkdir()
    (tmp_path / "resumed" / "blobs").symlink_to(tmp_path / "whole" / "blobs")
    expected = final_weights(whole)
    resumed = run_gang("embedding-ddp", params, roles("two-of-each"), tmp_path / "resumed", resume_from=manifest)
    torch.testing.assert_close(global_losses(resumed), global_losses(whole)[20:], rtol=0, atol=0)
    torch.testing.assert_close(final_weights(resumed), expected, rtol=0, atol=0)
