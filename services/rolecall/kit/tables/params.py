"""What a user may say about a job's table of rows. Torch-free; docstrings are the API's descriptions."""

from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from rolecall.kit.params import Count, Fraction, Name, Names, Paths, Text, Value, listed
from rolecall.spec import workload

_MOST_COLUMNS = 16_384
_Values = Annotated[list[Value], Field(max_length=4096, fail_fast=True)]


def _named(given: Any) -> Any:
    return {"column": given} if isinstance(given, str) else given


class Label(workload.Params):
    """The column to predict."""

    column: Name
    """Its name."""
    positive: Annotated[_Values | None, BeforeValidator(listed, json_schema_input_type=Value | _Values | None)] = None
    """The value or values that mean yes; every other value means no. Without it the column must hold 0 and 1, or true
    and false."""


class Categorical(workload.Params):
    """A column whose values are looked up in the embedding table."""

    column: Name
    """Its name."""
    separator: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """What parts the values of a multi-valued column, e.g. `|`; a Parquet list column needs none."""
    max_values: Annotated[int, Field(ge=1, le=1024)] = 1
    """How many values of one row are kept, from the left. Above 1 the column is multi-valued."""
    ids: Literal["dictionary", "hash"] = "dictionary"
    """`dictionary`: one id per value seen in the training rows; `hash`: a stable hash, modulo `buckets`."""
    buckets: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """The number of hash buckets; needed with `ids: hash`, and only there."""
    min_count: Count = 1
    """Values seen fewer times than this in the training rows share the id for unknown values."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.ids == "hash") != (self.buckets is not None):
            raise ValueError("buckets goes with ids: hash, and only there; give both or neither")
        if self.ids == "hash" and self.min_count > 1:
            raise ValueError("min_count needs ids: dictionary; a hash counts nothing")
        if self.separator is not None and self.max_values == 1:
            raise ValueError("a column with a separator is multi-valued; set max_values to 2 or more")
        return self


class Numeric(workload.Params):
    """A column of numbers."""

    column: Name
    """Its name."""
    transform: Literal["normalize", "buckets"] = "normalize"
    """`normalize`: mean 0 and deviation 1, an input of the dense layers; `buckets`: an id per quantile, looked up in
    the table. A column may be listed once with each."""
    buckets: Annotated[int, Field(ge=2, le=10_000)] | None = None
    """How many quantile buckets, with `transform: buckets`; 32 by default; equal quantiles collapse into one."""
    log: bool = False
    """Take sign(x) · log(1 + |x|) before normalising."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.log and self.transform == "buckets":
            raise ValueError("log needs transform: normalize; it does not change quantile buckets")
        if self.buckets is not None and self.transform == "normalize":
            raise ValueError("buckets needs transform: buckets")
        return self

    @property
    def bucket_count(self) -> int:
        """How many buckets to aim for."""
        return self.buckets or 32


class Csv(workload.Params):
    """The dialect of CSV and TSV files."""

    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    """What parts the columns; by default a comma, in `.tsv` files a tab."""
    column_names: Names | None = None
    """The names, for files without a header line; by default the first line of each file has them."""


class Data(workload.Params):
    """A job's rows."""

    train: Paths
    """The training rows: a path, glob or fsspec URL, or a list of them; CSV or TSV (also as `.gz`), or Parquet."""
    test: Paths | None = None
    """Rows for the final score, as `train`."""
    validation: Annotated[Fraction | Paths, Field(union_mode="left_to_right")] = 0.1
    """The rows for the score of each epoch: a share of the training rows, drawn by a seeded hash of the row's number,
    or paths as `train`."""
    format: Literal["csv", "tsv", "parquet"] | None = None
    """The format of all files; by default each file's suffix says it."""
    label: Annotated[Label, BeforeValidator(_named, json_schema_input_type=Name | Label)]
    """The column to predict: its name, or an object that also says which value means yes."""
    categorical: Annotated[
        tuple[Annotated[Categorical, BeforeValidator(_named, json_schema_input_type=Name | Categorical)], ...],
        Field(max_length=_MOST_COLUMNS),
    ] = ()
    """The categorical columns: names, or objects."""
    numeric: Annotated[
        tuple[Annotated[Numeric, BeforeValidator(_named, json_schema_input_type=Name | Numeric)], ...],
        Field(max_length=_MOST_COLUMNS),
    ] = ()
    """The numeric columns: names, or objects."""
    missing: Annotated[tuple[Text, ...], Field(max_length=1024)] = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL")
    """Texts that mean: no value; spaces around them don't count."""
    max_bad_rows: Annotated[int, Field(ge=0, le=2**40)] = 0
    """How many rows that can't be parsed are left out before the job fails; counted over all files together."""
    csv: Csv = Csv()
    """How CSV and TSV files are written."""
    stream: bool = False
    """Read the training rows in order in every epoch, through a shuffle buffer, instead of from a local cache: for data
    too large for the disk. Validation and test rows are cached all the same."""
    shuffle_buffer: Annotated[int, Field(ge=1, le=10_000_000)] = 65_536
    """With `stream`, how many rows are mixed at a time."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.categorical and not any(column.transform == "buckets" for column in self.numeric):
            raise ValueError("no column feeds the embedding; list a categorical column or a numeric one with buckets")
        _refuse_doubles("categorical", [column.column for column in self.categorical])
        _refuse_doubles("numeric", [f"{column.column} ({column.transform})" for column in self.numeric])
        if self.label.column in {column.column for column in (*self.categorical, *self.numeric)}:
            raise ValueError(f"the label {self.label.column!r} can't be an input too; list it once")
        return self

    @property
    def columns(self) -> list[str]:
        """The names of all columns that are read, each once."""
        return list(dict.fromkeys(c.column for c in (self.label, *self.categorical, *self.numeric)))

    @property
    def sources(self) -> dict[str, list[str]]:
        """The paths of each split that has its own."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: paths for split, paths in given.items() if isinstance(paths, list)}


def _refuse_doubles(field: str, names: list[str]) -> None:
    doubles = sorted(name for name, count in Counter(names).items() if count > 1)
    if doubles:
        raise ValueError(f"{field} lists {', '.join(doubles[:10])} more than once; list each once")
