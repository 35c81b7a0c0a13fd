"""The demo, as a newcomer runs it, and what it promises."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.conftest import Cluster

ROOT = Path(__file__).parent.parent
EXAMPLE = json.loads((ROOT / "examples/embedding-ddp.json").read_text())


@pytest.mark.slow
def test_the_demo_beats_the_published_score_and_leaves_nothing_running() -> None:
    """PERSIA reports a test AUC of 0.8929 on these rows (on CPU)."""
    before = {process.pid for process in psutil.process_iter() if _is_ours(process)}
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": "/nonexistent"}
    done = subprocess.run(
        ["examples/demo.sh"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    found = re.fullmatch(
        r"embedding-ddp succeeded: test_auc=(\S+) test_loss=(\S+) .*samples_per_s=(\S+) wall_s=(\S+).*", last
    )
    assert found, last
    assert float(found[1]) >= 0.915
    assert float(found[4]) <= 60
    assert {process.pid for process in psutil.process_iter() if _is_ours(process)} <= before


def _is_ours(process: psutil.Process) -> bool:
    try:
        return "rolecall" in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_asynchronous_protocols_reach_the_synchronous_score(cluster: Cluster) -> None:
    """On the whole of UCI Adult, within 0.005 of AUC."""
    sync = _test_auc(cluster, "sync")
    assert sync >= 0.915
    assert _test_auc(cluster, "async") == pytest.approx(sync, abs=0.005)
    assert _test_auc(cluster, "seed") == pytest.approx(sync, abs=0.005)


def _test_auc(cluster: Cluster, protocol: str) -> float:
    params: dict[str, Any] = EXAMPLE["params"] | {"protocol": protocol}
    if protocol == "seed":
        params.pop("lr_schedule")
    return cluster.wait_for(cluster.submit(EXAMPLE | {"params": params}), "succeeded", 150)["result"]["test_auc"]
