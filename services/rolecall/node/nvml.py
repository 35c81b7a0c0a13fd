# pyright: standard
# The library has no types.
"""A process that asks NVIDIA's driver about the GPUs: `python -m rolecall.node.nvml inventory`, or `use`.

A call of the driver's library (NVML) can hang or crash. The daemon therefore never makes one: it starts this process,
and kills it after a time limit (`ask_driver` in `devices.py`). The process prints a JSON document, whose types are in
`devices.py` and `gpu_readings.py`. If the driver fails, it prints the reason to stderr and ends with exit code 1.

It is started for each reading, so it imports little: neither pydantic nor the rest of the node.
"""

import itertools
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import pynvml

Document = dict[str, object]
Handle = Any
"""The library's pointer to a GPU or a slice."""

_P2P_READ = 0  # `pynvml.NVML_P2P_CAPS_INDEX_READ` is a tuple: its line ends with a comma.
_NoLibrary = pynvml.nvmlExceptionClass(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
_NoPermission = pynvml.nvmlExceptionClass(pynvml.NVML_ERROR_NO_PERMISSION)
_NotSupported = pynvml.nvmlExceptionClass(pynvml.NVML_ERROR_NOT_SUPPORTED)
_NotFound = pynvml.nvmlExceptionClass(pynvml.NVML_ERROR_NOT_FOUND)
_InvalidArgument = pynvml.nvmlExceptionClass(pynvml.NVML_ERROR_INVALID_ARGUMENT)


class DriverFailed(Exception):
    """The driver answers with an error. The text is the driver's."""


def inventory() -> Document:
    """The GPUs, or the slices of those that are divided, and the pairs of GPUs without peer access, by index."""
    gpus = list_gpus()
    parts: list[Document] = []
    for index, gpu in gpus.items():
        with _naming(index):
            slices = _slices(gpu)
            parts += [_part(gpu, pynvml.nvmlDeviceGetName(gpu))] if slices is None else slices
    try:
        return {"gpus": parts, "no_peer_access": _isolated_pairs(list(gpus.values()))}
    except pynvml.NVMLError as error:
        return {"gpus": parts, "peer_access_unknown": str(error)}


def use() -> list[Document]:
    """The use of each GPU, without GPUs whose memory is unknown, such as a divided one to a process without rights."""
    readings: list[Document] = []
    for index, gpu in list_gpus().items():
        with _naming(index), suppress(_NotSupported, _NoPermission):
            readings.append(_reading(gpu))
    return readings


def list_gpus() -> dict[int, Handle]:
    """The GPUs that this container may use, by the driver's index; none on a machine without the driver's library."""
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except _NoLibrary:
        return {}
    except pynvml.NVMLError as error:
        raise DriverFailed(str(error)) from None
    gpus: dict[int, Handle] = {}
    for index in range(count):
        # The count includes the machine's GPUs that the container may not use.
        with _naming(index), suppress(_NoPermission):
            gpus[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
    return gpus


def _slices(gpu: Handle) -> list[Document] | None:
    """The slices of a divided GPU (MIG) that this container may use; None for a GPU that has no slices.

    Their names are those of the GPU with the slice's profile, `3g.20gb`.
    """
    try:
        is_divided = pynvml.nvmlDeviceGetMigMode(gpu)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except _NotSupported:
        return None
    if not is_divided:
        return None
    whole = {"parent": pynvml.nvmlDeviceGetUUID(gpu)}
    name = pynvml.nvmlDeviceGetName(gpu)
    slices: list[Document] = []
    has_others = False
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
            # The driver says `NVIDIA A100-SXM4-40GB MIG 3g.20gb`.
            profile = pynvml.nvmlDeviceGetName(part).removeprefix(name).strip().removeprefix("MIG ")
            slices.append(_part(part, f"{name} {profile}") | whole)
        except _NoPermission:  # a slice of another container
            has_others = True
        except (_NotFound, _InvalidArgument):  # An index without a slice, for which drivers have different errors.
            pass
    return slices if slices or has_others else None


def _part(handle: Handle, name: str) -> Document:
    """A whole GPU or a slice, with the fields of `Gpu`."""
    return {"uuid": pynvml.nvmlDeviceGetUUID(handle), "name": name, "memory_bytes": _memory(handle).total}


def _reading(gpu: Handle) -> Document:
    """The fields of `GpuReading`."""
    memory = _memory(gpu)
    try:
        rates: Any = pynvml.nvmlDeviceGetUtilizationRates(gpu)
    except (_NotSupported, _NoPermission):
        rates = None
    return {
        "uuid": pynvml.nvmlDeviceGetUUID(gpu),
        "use": rates and rates.gpu / 100,
        "used_bytes": memory.used,
        "total_bytes": memory.total,
    }


def _memory(handle: Handle) -> Any:
    """The memory of a GPU or a slice, as in `nvidia-smi`: version 1 counts what the driver reserves as used."""
    return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)


def _isolated_pairs(gpus: list[Handle]) -> list[tuple[int, int]]:
    """The pairs of GPUs, by index in the list, that can't read each other's memory."""
    return [
        (i, j)
        for (i, one), (j, other) in itertools.combinations(enumerate(gpus), 2)
        if pynvml.nvmlDeviceGetP2PStatus(one, other, _P2P_READ) != pynvml.NVML_P2P_STATUS_OK
    ]


@contextmanager
def _naming(index: int) -> Generator[None, None, None]:
    """Adds the GPU's index to the driver's errors, so that it is known which GPU is lost."""
    try:
        yield
    except pynvml.NVMLError as error:
        raise DriverFailed(f"GPU {index}: {error}") from None


def main(question: str) -> None:
    """Print the answer. The library is not shut down, because the process ends."""
    try:
        print(json.dumps({"inventory": inventory, "use": use}[question]()))
    except DriverFailed as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
