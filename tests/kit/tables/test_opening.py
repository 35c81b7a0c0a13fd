"""Input files are found before they are read, and what reads them is imported for files alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.kit.tables.opening import open_table_source
from rolecall.spec.errors import InputError

from .tables import ROWS, csv, table

WITHOUT_PYARROW = """
import json, sys
from pathlib import Path
sys.modules["pyarrow"] = None  # Its import fails.
from rolecall.kit.tables.batches import open_batches
from rolecall.kit.tables.params import Data, SyntheticData

folder = Path(sys.argv[1])
data = SyntheticData.model_validate({"synthetic": {"rows": 40, "columns": 2, "numbers": 1}, "validation": 0.25})
batches = open_batches(data, 8, 0, folder)
sizes = [batch.global_rows for batch in (*batches.train(0, 0, 0, 1), *batches.held_out("validation", 0, 1))]
given = {"train": "rows.csv", "label": "y", "categorical": ["c"]}
try:
    open_batches(Data.model_validate(given), 8, 0, folder)
except ImportError as error:
    print(json.dumps([sum(sizes), error.name]))
"""


def test_each_split_has_its_files(tmp_path: Path) -> None:
    rows, held = csv(tmp_path / "rows.csv", *ROWS), csv(tmp_path / "held.csv", *ROWS)
    source = open_table_source(table(rows, validation=str(held)), 3)
    found = {split: [file.url for file in files] for split, files in source.files.items()}
    assert (found, source.seed) == ({"train": [str(rows)], "validation": [str(held)]}, 3)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    rows = csv(tmp_path / "rows.csv", *ROWS)
    with pytest.raises(InputError, match=r"held\.csv does not exist"):
        open_table_source(table(rows, validation=str(tmp_path / "held.csv")), 0)


def test_generated_rows_need_no_pyarrow(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_PYARROW, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [40, "pyarrow"]
