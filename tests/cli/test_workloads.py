"""`rolecall workloads`: the tree of parameters, and examples that a master accepts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field
from tests.master.harness import make_settings, one_trainer, serving

from rolecall.cli.param_tree import ParamEntry, param_tree
from rolecall.master import catalogue
from rolecall.spec.workload import Params

from .command import run_at


class Circle(BaseModel):
    """Round."""

    name: Literal["circle"]
    radius: Annotated[float, Field(gt=0, lt=2**30)] = 1.0


class Square(BaseModel):
    """Not round."""

    name: Literal["square"]


class Column(Params):
    """A column."""

    column: str
    """Its name."""
    inner: tuple["Column", ...] = ()


class Drawing(Params):
    """Parameters of every kind."""

    steps: Annotated[int, Field(ge=1, le=2**40)] = 3
    """The number of them."""
    shape: Annotated[Circle | Square, Field(discriminator="name")] | None = None
    columns: list[str | Column]
    mode: Literal["a", "b"] = "a"
    range: tuple[float, Annotated[int, Field(gt=-1)]] = (0.0, 1)
    sizes: Annotated[list[int], Field(min_length=2, max_length=2)] = [1, 2]  # noqa: RUF012 - pydantic copies it
    files: Annotated[list[str], Field(min_length=1)]
    pairs: Annotated[list[str | Column], Field(min_length=2)]
    only: Annotated[list[float], Field(min_length=1, max_length=1)] = [1.0]  # noqa: RUF012
    weights: dict[str, Column] = {}  # noqa: RUF012


def lines(entries: tuple[ParamEntry, ...], indent: str = "") -> Iterator[str]:
    """An entry a line."""
    for one in entries:
        yield f"{indent}{one.name}|{one.type}|{one.default}|{one.meaning}"
        yield from lines(one.inner, indent + " ")


def test_nested_parameters_have_types_ranges_defaults_and_meanings() -> None:
    assert list(lines(param_tree(Drawing.model_json_schema()))) == [
        "steps|integer from 1 to 2^40|3|The number of them.",
        'shape|name: "circle" or name: "square" or null|null|',
        ' |name: "circle"|None|Round.',
        "  radius|number > 0 and < 2^30|1.0|",
        ' |name: "square"|None|Not round.',
        "columns|list of (string or Column)|required|",
        " column|string|required|Its name.",
        " inner|list of Column|[]|",
        'mode|"a" or "b"|"a"|',
        "range|[number, integer > -1]|[0.0, 1]|",
        "sizes|list of 2 integers|[1, 2]|",
        "files|list of one or more strings|required|",
        "pairs|list of 2 or more (string or Column)|required|",
        " column|string|required|Its name.",
        " inner|list of Column|[]|",
        "only|list of 1 number|[1.0]|",
        "weights|object|{}|",
        " column|string|required|Its name.",
        " inner|list of Column|[]|",
    ]


def test_a_schema_that_contains_itself_has_an_end() -> None:
    schema = {"$defs": {"L": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/L"}]}}}}
    (entry,) = param_tree(schema | {"properties": {"deep": {"$ref": "#/$defs/L"}}})
    assert entry.type.startswith("list of (integer or list of (integer or list of")


@pytest.mark.slow
async def test_every_example_is_a_job_that_its_workload_accepts(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path), catalogue=catalogue.load()) as master:
        await one_trainer(master)
        listed = json.loads((await run_at(master, "workloads", "--json")).out)["workloads"]
        assert len(listed) >= 6
        for name in [one["name"] for one in listed]:
            shown = await run_at(master, "workloads", name, "--example")
            assert json.loads(shown.out)["workload"] == name
            planned = await run_at(master, "submit", "-", "--dry-run", given=shown.out)
            assert (planned.code, planned.out.partition(";")[0]) == (0, "the job is valid")
            schema = json.loads((await run_at(master, "workloads", name, "--schema")).out)
            tree = (await run_at(master, "workloads", name)).out
            described = [one["description"].split()[0] for one in schema["properties"].values()]
            assert tree.endswith(f"Example job: rolecall workloads {name} --example\n")
            assert all(field in tree for field in (*schema["properties"], *described))
        assert not json.loads((await run_at(master, "jobs", "--json")).out)["jobs"], "a dry run creates nothing"


async def test_a_plug_in_that_could_not_be_loaded_is_named_with_its_error(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as master:
        listed = await run_at(master, "workloads")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["NAME", "toy"]
    assert listed.err == "warning: the workload sad could not be loaded: ImportError: no module named sad\n"


async def test_a_workload_without_an_example_promises_none(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as master:
        assert "Example job" not in (await run_at(master, "workloads", "toy")).out
        refused = await run_at(master, "workloads", "toy", "--example")
    assert (refused.code, "toy has no example" in refused.err) == (4, True)
