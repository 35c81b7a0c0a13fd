"""The differences of jobs."""

import json
import time
from typing import Any

from tests.cpu_time import is_within

from rolecall.spec.comparison import differences, excerpts, leaves
from rolecall.spec.job import JobDocument
from rolecall.spec.resources import Resources
from rolecall.spec.role import Role


def job(workload: str, **params: Any) -> JobDocument:
    return JobDocument.model_construct(workload=workload, roles={}, resources={}, params=params, result=None)


NOTHING, ZERO = {"default": None}, {"default": 0}
STOP = {"default": None, "properties": {"after": {"default": 3}}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "a": {"properties": {"size": NOTHING, "own": NOTHING, "unset": NOTHING, "stop": STOP, "lr": {"default": 1}}},
    "b": {"properties": {"size": ZERO, "other": ZERO, "lr": ZERO}},
}


def test_of_different_workloads_only_what_was_set_or_can_be_compared_is_listed() -> None:
    first = job("a", size=None, own=4, unset=None, stop={"after": 3}, lr=1)
    found = differences([first, job("b", size=0, other=0, lr=0)], SCHEMAS)
    assert [(row.name, row.values) for row in found] == [
        ("workload", ["a", "b"]),
        ("params.size", ["null", "0"]),
        ("params.own", ["4", None]),
        ("params.stop.after", ["3", None]),  # It was set to an object, all of whose values are defaults.
        ("params.lr", ["1", "0"]),
    ]
    gone = differences([first, job("c", size=0, other=0)], SCHEMAS)
    assert "params.other" in {row.name for row in gone}, "its defaults are unknown"


def test_of_one_workload_everything_that_differs_is_listed() -> None:
    found = differences([job("a", size=None, own=None), job("a", size=1)], SCHEMAS)
    assert {row.name: row.values for row in found} == {"params.size": ["null", "1"], "params.own": ["null", None]}


def test_a_job_without_resources_of_its_own_has_no_row_for_them() -> None:
    # Its workload sets `busy`, not a user.
    own = job("a").model_copy(update={"resources": {Role.TRAINER: Resources(threads=2, busy=True)}})
    found = differences([job("a"), own], SCHEMAS)
    assert {row.name: row.values for row in found} == {"resources.trainer.threads": [None, "2"]}


def test_fields_of_a_kind_are_together() -> None:
    first = job("a", own=1).model_copy(update={"result": {"test_auc": 0.5}})
    second = job("b", other=1).model_copy(update={"result": {"test_loss": 2.0}})
    found = [row.name for row in differences([first, second], SCHEMAS)]
    assert found == ["workload", "params.own", "params.other", "result.test_auc", "result.test_loss"]


def test_nested_values_have_paths() -> None:
    given = {"text": {"train": ["a", "b"], "lowercase": True}, "name": "x", "empty": {}}
    found = [("text.train", '["a", "b"]'), ("text.lowercase", "true"), ("name", "x"), ("empty", "{}")]
    assert list(leaves(given)) == found


def test_a_key_with_a_dot_is_no_path() -> None:
    first, second = job("a", x={"y.z": 1, "": 0}), job("a", x={"y": {"z": 1}, "": 1})
    assert [(row.name, row.values) for row in differences([first, second], SCHEMAS)] == [
        ('params.x."y.z"', ["1", None]),
        ('params.x.""', ["0", "1"]),
        ("params.x.y.z", [None, "1"]),
    ]
    set_by_user = differences([job("a", own={"y.z": 1}), job("b", other=0)], SCHEMAS)
    assert [row.name for row in set_by_user] == ["workload", 'params.own."y.z"']


def test_long_paths_are_not_repeated_for_each_value() -> None:
    """A small job could otherwise fill the master's memory with the names of its parameters."""
    deep: dict[str, object] = {str(number): 0 for number in range(10_000)}
    for level in range(27):
        deep = {f"{level}".ljust(990, "x"): deep}
    size = len(str(deep))
    assert sum(len(name) + len(value) for name, value in leaves(deep)) < 2 * size


def test_excerpts_of_different_texts_differ() -> None:
    columns = [{"name": f"column-{number}", "log": False} for number in range(9)]
    logged = [*columns[:-1], {"name": "column-8", "log": True}]
    texts = [json.dumps(columns), json.dumps(logged), None]
    first, second, missing = excerpts(texts, 60)
    assert (first is not None and '"log": false' in first, second is not None and '"log": true' in second) == (
        True,
        True,
    )
    assert missing is None
    assert all(one is not None and one.startswith("…") and len(one) <= 60 for one in (first, second))


def test_excerpts_of_three_texts_have_each_difference() -> None:
    long = "x" * 500
    texts = ["a" + long + "1" + long, "a" + long + "2" + long, "b" + long + "1" + long]
    found = excerpts(texts, 60)
    assert len(set(found)) == 3
    assert max(len(one or "") for one in found) <= 60


def test_excerpts_of_short_or_equal_texts_are_their_beginnings() -> None:
    assert excerpts(["a", "b" * 60, None], 60) == ["a", "b" * 60, None]
    assert excerpts(["a" * 100, "b"], 60) == ["a" * 59 + "…", "b"]
    assert excerpts(["a" * 100] * 2, 60) == ["a" * 59 + "…"] * 2


def test_an_excerpt_shows_that_a_text_goes_on() -> None:
    """Of a text that ends between two parts, and of one that is short."""
    long = "x" * 500
    first, second, third, short = excerpts(
        [long + "1" + long, long + "2" + long, "0123456789" * 10, "0.000123456789"], 60
    )
    assert third is not None
    assert third.startswith("0123456789")
    assert third.endswith("…")
    assert short == "0.000123456789"
    assert first != second


def test_excerpts_of_large_texts_are_found_quickly() -> None:
    texts = ["x" * 1_000_000 + str(number) for number in range(8)]
    begin = time.thread_time()
    assert len(set(excerpts(texts, 60))) == 8
    assert is_within(time.thread_time() - begin, 0.05)
