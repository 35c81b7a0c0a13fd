"""Test support for workloads, built-in or in other packages: runs a job's processes without master and nodes.

result = run_gang(WORKLOAD, {"data": str(rows)}, {Role.TRAINER: 2}, tmp_path)
assert result.result["validation_loss"] < 0.5
"""

from rolecall.testing.gang import GangResult, run_gang

__all__ = ["GangResult", "run_gang"]
