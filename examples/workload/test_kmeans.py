"""`kmeans` in two processes, without master and nodes."""

from pathlib import Path
from zipfile import ZipFile

import pytest
from rolecall_kmeans import WORKLOAD
from safetensors.torch import load_file

from rolecall.kit import Role
from rolecall.testing import run_gang


@pytest.mark.slow
def test_two_trainers_find_the_centers_of_two_clusters(tmp_path: Path) -> None:
    points = [(x + offset, y - offset) for offset in (0, 100) for x in range(4) for y in range(6)]
    rows = tmp_path / "points.csv"
    rows.write_text("x,y\n" + "".join(f"{x},{y}\n" for x, y in points))
    params = {"data": str(rows), "columns": ["x", "y"], "clusters": 2, "epochs": 10}
    result = run_gang(WORKLOAD, params, {Role.TRAINER: 2}, tmp_path)
    with ZipFile(result.artifact("model.zip")) as archive:
        centers = load_file(archive.extract("centers.safetensors", tmp_path))["centers"]
    assert sorted(centers.tolist()) == [[1.5, 2.5], [101.5, -97.5]]
