# pyright: standard
"""Rows to train on, whose label depends on every column."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

COLUMNS: dict[str, Any] = {
    "label": "label",
    "categorical": ["city", {"column": "tags", "separator": "|", "max_values": 4}],
    "numeric": ["age", {"column": "pay", "transform": "buckets", "buckets": 8}],
}
"""Their description in `params.data`."""


def write_rows(path: Path, rows: int) -> Path:
    """Write a CSV file of two categorical columns, one of them multi-valued, two numbers and a label."""
    random = np.random.default_rng(5)
    city = random.integers(0, 40, rows)
    tags = [random.choice(25, size=random.integers(0, 4), replace=False) for _ in range(rows)]
    numbers = random.normal(size=(rows, 2))
    tilt = (city % 7 - 3) * 0.4 + np.array([sum(tag % 3 - 1 for tag in row) for row in tags]) * 0.5 + numbers[:, 0]
    columns = {
        "city": [f"c{value}" for value in city],
        "tags": ["|".join(f"t{tag}" for tag in row) for row in tags],
        "age": numbers[:, 0],
        "pay": np.exp(numbers[:, 1]),
        "label": (random.random(rows) < 1 / (1 + np.exp(-tilt))).astype(int),
    }
    csv.write_csv(pa.table(columns), path)
    return path
