"""Parameters of a job's table of rows. Torch-free; docstrings are the API's descriptions."""

import json
from collections import Counter
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from rolecall.kit.params import BatchSize, Count, Fraction, Name, Names, Paths, Text, Value, to_list, to_object
from rolecall.spec import workload
from rolecall.spec.bounds import matching
from rolecall.spec.workload import refuse

_MAX_COLUMNS = 16_384
MAX_CLASSES = 50_000
"""The maximum number of classes of a label."""
_MAX_SYNTHETIC_VALUES = 10**9
_Values = Annotated[list[Value], Field(max_length=4096, fail_fast=True)]
Target = Literal["binary", "classes", "number"]
"""The kinds of labels: yes or no, one of several classes, or a number."""

_named = to_object("column")


class Label(workload.Params):
    """The column to predict: yes or no, a class, or a number."""

    column: Name
    """Name of the column."""
    positive: Annotated[_Values | None, BeforeValidator(to_list, json_schema_input_type=Value | _Values | None)] = None
    """The value or values that mean yes; every other value means no. By default, a column without `classes` and
    `numeric` must contain 0 and 1, or true and false."""
    classes: Literal["auto"] | Annotated[list[Value], Field(max_length=MAX_CLASSES, fail_fast=True)] | None = None
    """The values of a label with two or more classes, in the order of the model's outputs; other values can't be
    parsed. `auto`: the distinct values in the training files, sorted."""
    numeric: bool = False
    """True if the label is a number to predict (regression)."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        kinds = {"positive": self.positive is not None, "classes": self.classes is not None, "numeric": self.numeric}
        given = [name for name, chosen in kinds.items() if chosen]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} describe different kinds of labels; set one of them")
        if isinstance(self.classes, list):
            if len(self.classes) < 2:
                raise ValueError("classes must have 2 values or more; for a label that is yes or no, set positive")
            _refuse_duplicates("classes", self.class_names)
        return self

    @property
    def class_names(self) -> list[str]:
        """The listed classes as text, to compare them: files have 2.0 as 2, but may have fractions in another form."""
        listed = self.classes if isinstance(self.classes, list) else []
        whole = (int(value) if isinstance(value, float) and value.is_integer() else value for value in listed)
        return list(map(plain_text, whole))

    @property
    def target(self) -> Target:
        """The kind of the label."""
        if self.numeric:
            return "number"
        return "binary" if self.classes is None else "classes"


class Categorical(workload.Params):
    """A column whose values are looked up in the embedding table."""

    column: Name
    """Name of the column."""
    separator: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Separator of the values of a multi-valued column, such as `|`; a Parquet list column needs none."""
    max_values: Annotated[int, Field(ge=1, le=1024)] = 1
    """Maximum number of values per row; the first ones are kept. Above 1, the column is multi-valued."""
    ids: Literal["dictionary", "hash"] = "dictionary"
    """Mapping of values to ids. `dictionary`: one id per value in the training rows; `hash`: a stable hash modulo
    `buckets`."""
    buckets: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Number of hash buckets; required with `ids: hash`, and only allowed there."""
    min_count: Count = 1
    """Values with fewer occurrences than this in the training rows share the id for unknown values."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.ids == "hash") != (self.buckets is not None):
            raise ValueError("buckets requires ids: hash; set both or neither")
        if self.ids == "hash" and self.min_count > 1:
            raise ValueError("min_count requires ids: dictionary; hashed values are not counted")
        if self.separator is not None and self.max_values == 1:
            raise ValueError("separator is for a multi-valued column; set max_values to 2 or more, or omit separator")
        return self


class Numeric(workload.Params):
    """A column of numbers."""

    column: Name
    """Name of the column."""
    transform: Literal["normalize", "buckets"] = "normalize"
    """Transformation of the values. `normalize`: to mean 0 and standard deviation 1, as an input of the dense layers;
    `buckets`: to an id per quantile, which is looked up in the table. A column can be listed once with each
    transform."""
    buckets: Annotated[int, Field(ge=2, le=10_000)] | None = None
    """Number of quantile buckets with `transform: buckets`; 32 by default. Equal quantiles are merged."""
    log: bool = False
    """Apply sign(x) · log(1 + |x|) before normalizing."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.log and self.transform == "buckets":
            raise ValueError("log requires transform: normalize; it has no effect on quantile buckets")
        if self.buckets is not None and self.transform == "normalize":
            raise ValueError("buckets requires transform: buckets")
        return self

    @property
    def bucket_count(self) -> int:
        """The intended number of buckets."""
        return self.buckets or 32


_Delimiter = Annotated[
    str,
    Field(max_length=1),
    matching(r"^[\x01-\t\x0b\x0c\x0e-!#-\x7f]$", "one ASCII character other than a line break and a double quote"),
]


class Csv(workload.Params):
    """The dialect of CSV and TSV files."""

    delimiter: _Delimiter | None = None
    """Separator of the columns; by default a comma, in `.tsv` files a tab."""
    column_names: Names | None = None
    """Names of the columns, for files without a header line; by default the first line of each file contains them."""


class Data(workload.Params):
    """A job's rows."""

    train: Paths
    """Training rows: a path, glob or fsspec URL, or a list of them; CSV or TSV (also as `.gz`), or Parquet."""
    test: Paths | None = None
    """Test rows for the final score, in the same form as `train`."""
    validation: Annotated[Fraction | Paths, Field(union_mode="left_to_right")] = 0.1
    """Validation rows, scored after each epoch: a share of the training rows, selected by a seeded hash of the row's
    number, or paths in the same form as `train`."""
    format: Literal["csv", "tsv", "parquet"] | None = None
    """Format of all files; by default it follows from each file's suffix."""
    label: Annotated[Label, BeforeValidator(_named, json_schema_input_type=Name | Label)]
    """The column to predict: its name, or an object that also defines which values mean yes."""
    categorical: Annotated[
        tuple[Annotated[Categorical, BeforeValidator(_named, json_schema_input_type=Name | Categorical)], ...],
        Field(max_length=_MAX_COLUMNS),
    ] = ()
    """The categorical columns: names, or objects."""
    numeric: Annotated[
        tuple[Annotated[Numeric, BeforeValidator(_named, json_schema_input_type=Name | Numeric)], ...],
        Field(max_length=_MAX_COLUMNS),
    ] = ()
    """The numeric columns: names, or objects."""
    missing: Annotated[tuple[Text, ...], Field(max_length=1024)] = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL")
    """Strings that represent a missing value; surrounding spaces are ignored."""
    max_bad_rows: Annotated[int, Field(ge=0, le=2**40)] = 0
    """Maximum number of skipped rows that can't be parsed, over all files; above it the job fails."""
    csv: Csv = Csv()
    """Dialect of CSV and TSV files."""
    stream: bool = False
    """Read the training rows in order in every epoch, through a shuffle buffer, instead of from a local
    cache. Use it for data that is too large for the disk. Validation and test rows are always cached."""
    shuffle_buffer: Annotated[int, Field(ge=1, le=10_000_000)] = 65_536
    """Number of rows in the shuffle buffer, with `stream`."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.categorical and not any(column.transform == "buckets" for column in self.numeric):
            raise ValueError(
                "categorical has no column, so none uses the embedding; list a categorical or a bucketed numeric column"
            )
        _refuse_duplicates("categorical", [column.column for column in self.categorical])
        _refuse_duplicates("numeric", [f"{column.column} ({column.transform})" for column in self.numeric])
        if self.label.column in {column.column for column in (*self.categorical, *self.numeric)}:
            raise ValueError(f"label {self.label.column!r} can't also be an input; list it once")
        if missing := sorted({*self.label.class_names} & {*self.missing}):
            raise ValueError(
                f"missing contains {', '.join(missing[:10])}, so no row has this label; remove it from either "
                "data.missing or data.label.classes"
            )
        return self

    @property
    def columns(self) -> list[str]:
        """The names of all columns that are read, each once."""
        return list(dict.fromkeys(c.column for c in (self.label, *self.categorical, *self.numeric)))

    @property
    def sources(self) -> dict[str, list[str]]:
        """The paths of each split that has its own files."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: paths for split, paths in given.items() if isinstance(paths, list)}


class Synthetic(workload.Params):
    """Random rows, for smoke tests, lessons and benchmarks. They depend only on these parameters."""

    rows: Annotated[int, Field(ge=1, le=2**31)] = 10_000
    """Number of training rows, including the share that `data.validation` takes from them."""
    test: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Number of test rows; 0 for none."""
    columns: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of categorical columns, named `c0`, `c1` and so on."""
    ids: Annotated[int, Field(ge=1, le=2**31)] = 100
    """Number of distinct values of each categorical column. Each column has two further rows of the table, for missing
    and unknown values."""
    min_values: Annotated[int, Field(ge=1, le=1024)] = 1
    """Minimum number of values per row in a categorical column."""
    max_values: Annotated[int, Field(ge=1, le=1024)] = 1
    """Maximum number of values per row in a categorical column; the number is random."""
    min_batch: BatchSize | None = None
    """Minimum number of rows in a step. Each step then uses a random number of its batch's rows, from this to the job's
    `batch_size`, as in the PyTorch tutorial. By default, a step uses all of them."""
    skew: Annotated[float, Field(ge=0, le=4)] = 0.0
    """Exponent s of the distribution of the values: value k of a column is about k^-s times as likely as the first one,
    as in Zipf's law. 0 makes all values equally likely; words and product ids are close to 1."""
    numbers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Number of numeric columns, named `n0`, `n1` and so on, with a standard normal distribution."""
    label: Literal["binary", "number"] | Annotated[int, Field(ge=2, le=MAX_CLASSES)] = "binary"
    """The label: `binary` is 0 or 1, `number` a number, and an integer the number of classes."""
    signal: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the rows whose label follows from their categorical values, so that a model can learn it; the labels of
    the other rows are random."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the rows; independent of the seed of the job."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_values < self.min_values:
            raise ValueError(
                f"max_values {self.max_values} is below min_values {self.min_values}; set it to at least that"
            )
        values = (self.rows + self.test) * (self.columns * self.max_values + self.numbers)
        if values > _MAX_SYNTHETIC_VALUES:
            raise ValueError(
                f"rows times values per row is {values}; at most {_MAX_SYNTHETIC_VALUES} are generated: "
                "set fewer rows, columns, max_values or numbers"
            )
        return self


class SyntheticData(workload.Params):
    """A job's rows, generated."""

    synthetic: Synthetic
    """Number and kind of the generated rows."""
    validation: Fraction = 0.1
    """Validation rows, scored after each epoch: a share of the rows, selected by a seeded hash of the row's number."""

    @property
    def label(self) -> Label:
        """The label's description, as for rows from files."""
        match self.synthetic.label:
            case "binary":
                return Label(column="label")
            case "number":
                return Label(column="label", numeric=True)
            case classes:
                return Label(column="label", classes=list(range(classes)))

    @property
    def missing(self) -> tuple[str, ...]:
        """Strings that represent a missing value in rows for a trained model."""
        return ("",)


def _choose(given: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """Validate one of the two forms, so that errors are about the form that was meant."""
    if not isinstance(given, dict):
        return given if isinstance(given, SyntheticData) else Data.model_validate(given)
    fields = cast(dict[str, Any], given)
    if "synthetic" not in fields:
        return _validated(Data, fields, info)
    unused = sorted(fields.keys() & Data.model_fields.keys() - SyntheticData.model_fields.keys())
    refuse(f"{name} is not for synthetic data, which is generated; omit {name} or synthetic" for name in unused)
    return _validated(SyntheticData, fields, info)


def _validated(kind: type[Data | SyntheticData], fields: dict[str, Any], info: ValidationInfo) -> Data | SyntheticData:
    """Validate `fields`, strictly if the caller validates JSON, as the master does with requests."""
    if info.mode == "json":
        return kind.model_validate_json(json.dumps(fields), strict=True)
    return kind.model_validate(fields)


TableData = Annotated[Data | SyntheticData, WrapValidator(_choose)]
"""A job's rows: read from files, or generated."""


def plain_text(value: str | float) -> str:
    """A value as text; true and false are in lower case, as in files."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refuse_duplicates(field: str, names: list[str]) -> None:
    duplicates = sorted(name for name, count in Counter(names).items() if count > 1)
    if duplicates:
        raise ValueError(f"{field} lists {', '.join(duplicates[:10])} more than once; list each once")
