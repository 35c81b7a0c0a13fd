# pyright: standard
"""The device of the tests, and the report. `make test` collects nothing here: only `tests.gpu` sets the device."""

import json
import os
import platform
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

DEVICE = os.environ.get("ROLECALL_TEST_DEVICE")
collect_ignore_glob = [] if DEVICE else ["test_*.py"]
_REPORT = pytest.StashKey[dict[str, Any]]()


def pytest_configure(config: pytest.Config) -> None:
    """Describe the machine; on a machine without CUDA, end before any test would seem to pass."""
    if DEVICE is None:
        return
    import torch
    from torch.cuda import nccl

    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.exit("torch finds no GPU; rehearse the tests on the CPU with DEVICE=cpu", returncode=2)
    report = {"device": DEVICE, "started": datetime.now(UTC).isoformat(timespec="seconds")}
    report |= {"python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count()}
    if DEVICE == "cuda":
        report |= {"cuda": torch.version.cuda, "nccl": ".".join(map(str, nccl.version()))}
        report |= {"gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]}
    config.stash[_REPORT] = {**report, "tests": [], "figures": {}}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add each test's outcome to the report."""
    result: Any = yield
    if DEVICE and (result.when == "call" or result.skipped):
        reason = result.longrepr[2] if result.skipped and isinstance(result.longrepr, tuple) else None
        entry = {"test": item.nodeid, "outcome": result.outcome, "seconds": round(call.duration, 1)}
        item.config.stash[_REPORT]["tests"].append({**entry, "reason": reason} if reason else entry)
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report."""
    path = os.environ.get("ROLECALL_TEST_REPORT")
    if DEVICE and path and session.testscollected:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(session.config.stash[_REPORT], indent=1) + "\n")


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A test's measurements for the report, by name."""
    every = request.config.stash[_REPORT]["figures"]
    return every.setdefault(request.node.name, {})


@pytest.fixture(autouse=True)
def duration(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print how long each test took, so that a run that is cut off still says it."""
    begin = time.monotonic()
    yield
    print(f"{request.node.name}: {time.monotonic() - begin:.1f} s")
