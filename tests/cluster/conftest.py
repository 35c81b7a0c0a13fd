from pathlib import Path

import pytest
from tests.rows import write_rows


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.csv", rows=6000)
