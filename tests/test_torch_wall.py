"""The master, nodes, the command line and the workload catalogue never import torch."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    ["rolecall.master.server", "rolecall.node.server", "rolecall.cli", "rolecall.workloads.embedding_ddp"],
)
def test_torch_stays_out(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
