"""Small tables and parameters for the tests of the input and the model."""

from pathlib import Path
from typing import Any

import torch

from rolecall.workloads.embedding_ddp.batches import Dataset, open_dataset
from rolecall.workloads.embedding_ddp.params import Params


def params(train: Path | str | list[str], *, data: dict[str, Any] | None = None, **others: Any) -> Params:
    given = {"train": train if isinstance(train, list) else str(train), "label": "y", "categorical": ["c"]}
    given |= {"numeric": ["n"], "validation": 0.0} | (data or {})
    return Params.model_validate({"data": given, "batch_size": 4, "embedding_dim": 3, "hidden": [5]} | others)


def opened(folder: Path, given: Params) -> Dataset:
    return open_dataset(given, folder / "cache", dtype=torch.float64)


def csv(path: Path, *rows: str, header: str = "y,c,n") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


ROWS = ("1,a,1", "0,b,2", "1,a,3", "0,,4", "1,c,", "0,b,6")
