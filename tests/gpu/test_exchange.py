"""RPC device maps and process groups, between workers that share a GPU and between workers with one each."""

from pathlib import Path
from typing import Any

import pytest
from tests.gpu.exchange import WORKLOAD
from tests.gpu.jobs import ON_GPU, TRAINER, gpu_uuids, run_workers


def exchange(folder: Path, gpus: tuple[str, ...], **params: Any) -> dict[str, float]:
    """Run the workload `exchange`, whose workers check what they receive."""
    return run_workers(WORKLOAD, params, {TRAINER: 2}, folder / "gang", gpus={TRAINER: gpus} if gpus else {}).result


def test_workers_that_share_a_gpu_exchange_tensors(tmp_path: Path) -> None:
    """By RPC and by Gloo, because NCCL needs a GPU for each worker."""
    assert exchange(tmp_path, gpu_uuids()[:1]) == {"on_gpu": float(ON_GPU)}


def test_empty_tensors_arrive(tmp_path: Path) -> None:
    """As a shard of a table gets them if a batch has none of its rows."""
    assert exchange(tmp_path, gpu_uuids()[:1], sizes=[0]) == {"on_gpu": float(ON_GPU)}


def test_workers_with_a_gpu_each_exchange_tensors(tmp_path: Path, figures: dict[str, Any]) -> None:
    """By RPC and by NCCL."""
    if len(gpu_uuids()) < 2:
        pytest.skip(f"NCCL needs two GPUs, and there are {len(gpu_uuids())}")
    figures["gpus"] = len(gpu_uuids())
    assert exchange(tmp_path, gpu_uuids()[:2]) == {"on_gpu": 1.0}
