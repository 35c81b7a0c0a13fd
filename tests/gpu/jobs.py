# pyright: standard
"""The jobs of the tests, and how they run: on the GPU, or in a rehearsal on the CPU."""

import ctypes
import functools
import os
import random
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors

from rolecall.node.devices import find_gpus
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.role import Role
from rolecall.spec.workload import Workload
from rolecall.testing import GangResult, run_gang

ON_GPU = os.environ.get("ROLECALL_TEST_DEVICE") == "cuda"
STEPS, CHECKPOINT_STEP = 6, 3
PS, TRAINER, STAGE, MASTER, OBSERVER = Role.PARAMETER_SERVER, Role.TRAINER, Role.STAGE, Role.MASTER, Role.OBSERVER
ENVIRONMENT = {
    # The workers meet on this machine, whose name may not resolve.
    **dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), "lo"),
    # TensorFloat-32 has 10 bits of mantissa where the CPU's float32 has 23; cuDNN uses it by default.
    "NVIDIA_TF32_OVERRIDE": "0",
    # cuBLAS's results then don't depend on the streams of the calls.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
_SGD = {"name": "sgd", "lr": 0.2, "momentum": 0.5}
# No dropout: the generators of CPU and GPU differ.
_RNN = {
    "embedding_dim": 16,
    "hidden_dim": 16,
    "dropout": 0.0,
    "batch_size": 8,
    "bptt": 7,
    "optimizer": _SGD,
    "max_grad_norm": 0.3,
    "sample": {"tokens": 5},
}
# Generated, because pyarrow, which reads files, doesn't fit among the wheels that are carried to the machine.
_ROWS = {"rows": 1500, "columns": 2, "ids": 40, "max_values": 4, "numbers": 1, "signal": 0.9}
_EMBEDDING = {
    "data": {"synthetic": _ROWS},
    "embedding_dim": 8,
    "hidden": [16],
    "dropout": 0.0,
    "batch_size": 64,
    "sparse_optimizer": {"name": "adagrad", "lr": 0.05},
    "dense_optimizer": _SGD,
}
# A `RemoteModule` with an `nn.EmbeddingBag` on each server, and one optimizer of remote and local weights. Without
# momentum, because a DistributedOptimizer's state is not in checkpoints.
_EMBEDDING_TUTORIAL = {
    "data": {"synthetic": _ROWS},
    "embedding_dim": 8,
    "hidden": [],
    "pooling": "sum",
    "batch_size": 64,
    "protocol": "tutorial",
    "optimizer": {"name": "sgd", "lr": 0.05},
}
# With a larger learning rate, BatchNorm over so few images multiplies the last bits a million times in four steps.
_RESNET = {"model": "resnet18", "cuts": ["layer3.0"], "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.001}}
_TRANSFORMER = {
    "context": 16,
    "layers": 4,
    "dim": 16,
    "heads": 2,
    "batch_size": 8,
    "micro_batches": 4,
    "optimizer": _SGD,
    "max_grad_norm": 0.5,
    "sample": {"tokens": 5},
}
_REINFORCE = {
    "environment": "CartPole-v1",
    "environments": 3,
    "algorithm": {"name": "ppo", "steps": 64, "epochs": 2, "minibatch_size": 48},
    "optimizer": {"name": "sgd", "lr": 0.01},
    "max_updates": STEPS,
    "checkpoint_every_updates": CHECKPOINT_STEP,
    "evaluation": {"episodes": 2, "movie": False},
}


@dataclass(frozen=True)
class Job:
    """A job of `STEPS` steps with a checkpoint, and the roles whose workers compute on the GPU, which they share."""

    workload: str
    roles: Mapping[Role, int]
    on_gpu: Collection[Role]
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    resumes: bool = True
    """False for the tutorials' own forms that can't continue to the same weights."""


JOBS = {
    "embedding-ddp, trainer": Job("embedding-ddp", {MASTER: 1, PS: 1, TRAINER: 1}, [TRAINER], _EMBEDDING),
    "embedding-ddp, server": Job("embedding-ddp", {MASTER: 1, PS: 2, TRAINER: 1}, [PS], _EMBEDDING),
    "embedding-ddp, all": Job("embedding-ddp", {MASTER: 1, PS: 2, TRAINER: 2}, [PS, TRAINER], _EMBEDDING),
    "embedding-ddp, tutorial": Job("embedding-ddp", {MASTER: 1, PS: 2, TRAINER: 1}, [PS, TRAINER], _EMBEDDING_TUTORIAL),
    "rnn-lm, trainer": Job("rnn-lm", {PS: 1, TRAINER: 1}, [TRAINER], _RNN),
    "rnn-lm, server": Job("rnn-lm", {PS: 1, TRAINER: 1}, [PS], {**_RNN, "loss_at": "trainer"}),
    "rnn-lm, all": Job("rnn-lm", {PS: 2, TRAINER: 2}, [PS, TRAINER], _RNN),
    "rnn-lm, tutorial": Job(
        "rnn-lm",
        {PS: 1, TRAINER: 1},
        [PS, TRAINER],
        {
            **_RNN,
            "protocol": "tutorial",
            "max_grad_norm": None,
            "optimizer": {"name": "sgd", "lr": 0.2},
            "initial_state": "random",
        },
        resumes=False,
    ),
    "resnet-pipeline": Job("resnet-pipeline", {MASTER: 1, STAGE: 2}, [STAGE], {**_RESNET, "micro_batches": 2}),
    "resnet-pipeline, replicas": Job(
        "resnet-pipeline", {MASTER: 1, STAGE: 4}, [STAGE], {**_RESNET, "micro_batches": 2, "replicas": 2}
    ),
    "resnet-pipeline, tutorial": Job(
        "resnet-pipeline",
        {MASTER: 1, STAGE: 2},
        [STAGE],
        {**_RESNET, "micro_batches": 2, "protocol": "tutorial"},
        resumes=False,
    ),
    "transformer-pipeline": Job("transformer-pipeline", {STAGE: 2}, [STAGE], _TRANSFORMER),
    "transformer-pipeline, V": Job(
        "transformer-pipeline", {STAGE: 2}, [STAGE], {**_TRANSFORMER, "schedule": "ZBVZeroBubble", "virtual_stages": 2}
    ),
    "transformer-pipeline, tracer, replicas": Job(
        "transformer-pipeline",
        {STAGE: 4},
        [STAGE],
        {**_TRANSFORMER, "split": "tracer", "replicas": 2, "micro_batches": 2},
    ),
    "reinforce": Job("reinforce", {TRAINER: 1, OBSERVER: 2}, [TRAINER], _REINFORCE),
}

AGENTS = {
    "every step": Job("reinforce", {TRAINER: 1, OBSERVER: 2}, [TRAINER], {**_REINFORCE, "policy_at": "agent"}),
    "tutorial": Job(
        "reinforce",
        {TRAINER: 1, OBSERVER: 2},
        [TRAINER],
        {
            **_REINFORCE,
            "policy_at": "agent",
            "protocol": "tutorial",
            "algorithm": "reinforce",
            "environments": 1,
            "policy": {"name": "mlp", "hidden": [16], "activation": "relu", "dropout": 0.6},
        },
    ),
}
"""Agents that select the actions, with random numbers of the GPU's own, so that no result can be compared."""


def params_of(job: Job, precision: str, inputs: Path) -> dict[str, Any]:
    """The parameters of `job`, whose input is in the folder `inputs`."""
    common = {"precision": precision, "seed": 3, "checkpoint_every_s": None}
    if job.workload != "reinforce":
        common |= {"max_steps": STEPS, "checkpoint_every_steps": CHECKPOINT_STEP}
    match job.workload:
        case "rnn-lm":
            common |= {"text": {"train": str(inputs / "text.txt"), "validation": 0.1, "vocabulary": 90}}
        case "transformer-pipeline":
            common |= {"text": {"train": str(inputs / "text.txt"), "tokens": "character"}}
        case "resnet-pipeline":
            images = {"train": str(inputs / "images"), "size": 64, "validation": 0.25, "loader_processes": 0}
            common |= {"data": images}
    return {**job.params, **common}


def run_job(
    job: Job,
    params: dict[str, Any],
    folder: Path,
    *,
    on_gpu: bool = True,
    resume_from: CheckpointManifest | None = None,
) -> GangResult:
    """Run `job` on the GPU, or on the CPU: with `on_gpu` false, and always in a rehearsal."""
    gpus = dict.fromkeys(job.on_gpu, gpu_uuids()[:1]) if on_gpu else {}
    return run_workers(job.workload, params, job.roles, folder, gpus=gpus, resume_from=resume_from)


def run_workers(workload: str | Workload[Any], params: dict[str, Any], *where: Any, **options: Any) -> GangResult:
    """As `run_gang`, with exact arithmetic, and input from any place below the folder of the tests."""
    folder: Path = where[1]
    environment = {"ROLECALL_DATA_ROOTS": str(folder.parents[1]), **ENVIRONMENT}
    return run_gang(workload, params, *where, environment=environment, **options)


@functools.cache
def gpu_uuids() -> tuple[str, ...]:
    """The UUIDs of the GPUs that these tests may use, which torch knows without NVML; none in a rehearsal."""
    if not ON_GPU:
        return ()
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    listed = tuple(gpu.uuid for gpu in find_gpus(os.environ)[0])
    return listed or tuple(f"GPU-{device.uuid}" for device in devices)


def require_nvml() -> None:
    """Skip where a node can't find GPUs: without the driver's library, or its package for Python."""
    pytest.importorskip("pynvml")
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        pytest.skip(f"a node finds GPUs with NVIDIA's library NVML, which this machine lacks: {error}")


def checkpoint_of(result: GangResult, step: int) -> CheckpointManifest:
    return CheckpointManifest.model_validate_json((result.folder / f"checkpoint-{step:06d}.json").read_text())


def weights_of(result: GangResult) -> dict[str, torch.Tensor]:
    """The weights in the exported archive."""
    with zipfile.ZipFile(result.artifact("model.zip")) as archive:
        parts = [load_tensors(archive.read(name)) for name in archive.namelist() if name.endswith(".safetensors")]
    return {name: weight for part in parts for name, weight in part.items()}


def write_text(path: Path, lines: int = 500) -> None:
    """Lines of 11 words, each of which says something about the next."""
    draw = random.Random(1)
    word, text = 0, list[str]()
    for _ in range(lines):
        words = list[str]()
        for _ in range(11):
            word = (3 * word + draw.randrange(4)) % 97
            words.append(f"w{word}")
        text.append(" ".join(words) + ".\n")
    path.write_text("".join(text))


def write_images(folder: Path) -> None:
    """72 images of 32 × 32 in 3 classes, each with stripes of its own under noise."""
    from PIL import Image

    draw = random.Random(1)
    for number in range(72):
        label = number % 3
        pixels = bytes(draw.randrange(128) + 127 * ((row, column, row + column)[label] // 4 % 2) for row in range(32)
                       for column in range(32))  # fmt: skip
        place = folder / f"class-{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.frombytes("L", (32, 32), pixels).convert("RGB").save(place / f"{number}.png")
