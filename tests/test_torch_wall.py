"""The master, nodes, the command line and the workload catalogue never import torch or pyarrow."""

import subprocess
import sys

import pytest

from rolecall.workloads import catalogue


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "rolecall.master.server",
        "rolecall.node.server",
        "rolecall.cli.app",
        *(point.module for point in catalogue.installed().values()),
    ],
)
def test_torch_is_not_imported(module: str) -> None:
    """Neither torch nor packages that import it or are similarly large."""
    large = {"torch", "torchvision", "gymnasium", "tokenizers", "pyarrow"}
    program = f"import sys, {module}; print(*({large} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert not done.stdout.strip()
