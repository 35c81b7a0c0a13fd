"""Small tables and parameters for the tests of the input and the model."""

from pathlib import Path
from typing import Any

from tests.kit.tables.tables import described

from rolecall.workloads.embedding_ddp.build import Dataset, open_dataset
from rolecall.workloads.embedding_ddp.params import Params


def params(train: Path | str | list[str], *, data: dict[str, Any] | None = None, **others: Any) -> Params:
    given = described(train, **(data or {}))
    return Params.model_validate({"data": given, "batch_size": 4, "embedding_dim": 3, "hidden": [5]} | others)


def opened(folder: Path, given: Params) -> Dataset:
    return open_dataset(given, folder / "cache")
