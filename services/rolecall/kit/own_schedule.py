"""The parameter of a job with its own pipeline schedule. Torch-free; docstrings are the API's descriptions."""

from functools import cached_property
from typing import Annotated, Self

from pydantic import Field, ValidationInfo, model_validator

from rolecall.kit import files
from rolecall.kit.csv_schedules import MAX_BYTES, MAX_RANKS, MAX_TASKS, CsvSchedule, count_tasks, parse_schedule
from rolecall.kit.params import DataPath
from rolecall.spec import workload
from rolecall.spec.errors import InputError
from rolecall.spec.visible import one_line

MAX_ROW_TASKS = 40_000
"""The maximum number of tasks in the rows of a request. The master checks them, and delays other requests by that.

Rows of stored jobs can have as many tasks as files.
"""


class OwnSchedule(workload.Params):
    """A custom schedule in torch's CSV format: a row for each pipeline rank, with tasks such as `0F3`."""

    csv: DataPath | None = None
    """A CSV file below a data root. The job's `virtual_stages` must say how many virtual stages its ranks have."""
    rows: Annotated[
        tuple[Annotated[str, Field(max_length=MAX_BYTES)], ...] | None, Field(min_length=1, max_length=MAX_RANKS)
    ] = None
    """The rows of the file, instead of `csv`, with at most 40,000 tasks; a file can have 200,000."""

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        if self.csv is None and self.rows is None:
            raise ValueError("csv is missing; set either csv (a file) or rows (its lines)")
        if self.csv is not None and self.rows is not None:
            raise ValueError("csv and rows are both given; set either csv (a file) or rows (its lines)")
        if self.rows is not None:
            try:
                if info.mode == "json" and (count := count_tasks(self.rows)) > MAX_ROW_TASKS:
                    raise InputError(
                        f"the schedule has {count:,} tasks; rows can have at most {MAX_ROW_TASKS:,}, and a file (csv) "
                        f"{MAX_TASKS:,}"
                    )
                self.load()
            except InputError as error:
                raise ValueError(f"rows: {error}") from error
        return self

    @cached_property
    def of_rows(self) -> CsvSchedule:
        """The schedule of `rows`, which a check of the job needs several times."""
        assert self.rows is not None
        return parse_schedule(self.rows)

    def load(self) -> CsvSchedule:
        """The schedule. Raises `InputError` if the file can't be read, or is not valid."""
        if self.rows is not None:
            return self.of_rows
        assert self.csv is not None
        found = files.find([self.csv])
        if len(found) != 1:
            raise InputError(f"schedule.csv must be one file; {one_line(self.csv)} names {len(found)}")
        with found[0].open() as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(f"{found[0].name} has more than {MAX_BYTES} bytes")
        try:
            return parse_schedule(content.decode().splitlines())
        except (UnicodeDecodeError, InputError) as error:
            raise InputError(f"{found[0].name}: {error}") from error
