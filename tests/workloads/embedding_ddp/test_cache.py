# pyright: standard
"""A large file becomes a cache in small memory, and batches come from it fast."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from rolecall.workloads.embedding_ddp.params import Params

from .tables import opened, params

ROWS = 2_000_000
CHUNK = 100_000
BUILD = """
import json, sys
from pathlib import Path
from rolecall.kit.tables.opening import open_table_source
from rolecall.workloads.embedding_ddp.params import Params

def peak():  # of this program alone: getrusage's would count what its parent was before the exec
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024

given = Params.model_validate_json(sys.argv[1])
source = open_table_source(given.data, given.seed)
before = peak()
cache = source.encoded_table(Path(sys.argv[2]))
records = cache.records("train")
print(json.dumps({"rows": cache.rows, "decoded": records.nbytes / 2**20, "grown": peak() - before}))
"""
PEAK_MIB = 140


def large(path: Path) -> Params:
    """Parameters for a CSV file of about 240 MB: 8 categorical columns with up to 50,000 values and 4 numeric ones."""
    random = np.random.default_rng(0)
    with csv.CSVWriter(path, _chunk(random).schema) as writer:
        for _ in range(ROWS // CHUNK):
            writer.write_table(_chunk(random))
    numeric = ["n0", "n1", "n2", {"column": "n3", "transform": "buckets"}]
    data = {"categorical": [f"c{i}" for i in range(8)], "numeric": numeric}
    return params(path, data=data, batch_size=1024)


def _chunk(random: np.random.Generator) -> pa.Table:
    known = pa.array([f"value-{i}" for i in range(50_000)])
    texts = {f"c{i}": known.take(pa.array(random.zipf(1.3, CHUNK) % (50 << i) % 50_000)) for i in range(8)}
    numbers = {f"n{i}": np.round(random.normal(size=CHUNK), 6) for i in range(4)}
    return pa.table({"y": random.integers(0, 2, CHUNK), **texts, **numbers})


@pytest.mark.slow
def test_a_large_file_is_cached_in_small_memory_and_read_fast(tmp_path: Path) -> None:
    given = large(tmp_path / "large.csv")
    assert (tmp_path / "large.csv").stat().st_size > 200e6
    command = [sys.executable, "-c", BUILD, given.model_dump_json(), str(tmp_path / "cache")]
    began = time.monotonic()
    built = json.loads(subprocess.check_output(command, text=True))
    print(f"built in {time.monotonic() - began:.1f} s: {built}")
    assert built["rows"]["train"] == ROWS
    assert built["grown"] < PEAK_MIB < built["decoded"]

    dataset = opened(tmp_path, given)
    began = time.monotonic()
    rows = sum(batch.rows for batch in dataset.train_batches(0, 0, 0, 1))
    rate = rows / (time.monotonic() - began)
    print(f"{rate:,.0f} rows/s in batches of 1024")
    assert rows == ROWS
    assert rate > 100_000
