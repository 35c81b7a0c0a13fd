# pyright: standard
"""Changes to a job: `--set PATH=VALUE,…`."""

import json
from pathlib import Path
from typing import Any

import pytest

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.job_file import changed_job, parse_job, parse_setting, read_job, single_value, with_value

JOB: dict[str, Any] = {
    "workload": "w",
    "params": {"lr_schedule": None, "model": "resnet18", "data": {"numeric": ["age", {"column": "pay", "log": True}]}},
}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2.5,-4", (1, 2.5, -4)),
        ("true,null,yes", (True, None, "yes")),
        ("1F1B,GPipe", ("1F1B", "GPipe")),
        ("[1,2],[3]", ([1, 2], [3])),
        ('{"a":1,"b":[2]},{}', ({"a": 1, "b": [2]}, {})),
        ('"a,b","",c', ("a,b", "", "c")),
        ('[{"a":[",",{}]},"]"],"\\"",[]', ([{"a": [",", {}]}, "]"], '"', [])),
        ("NaN,Infinity", ("NaN", "Infinity")),
        ("a=b", ("a=b",)),
    ],
)
def test_a_value_is_json_or_text(text: str, values: tuple[Any, ...]) -> None:
    assert parse_setting(f"params.x={text}") == ("params.x", values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("params.x", "write a path and its values, such as params.batch_size=64"),
        ("params..x=1", "write a path"),
        ("=1", "write a path"),
        ("a=", 'for empty text, write ""'),
        ("a=1,,2", "a value is missing"),
        ("a=1,", "a value is missing"),
        ("a=[1,2", "[1,2 is not JSON"),
        ('a="x"y', "there must be a comma between two values"),
        ("a=" + "[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_no_setting_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_setting(text)
    assert caught.value.code is Exit.USAGE
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_values_need_a_sweep() -> None:
    assert single_value("a", [[1, 2]]) == [1, 2]
    with pytest.raises(CommandError, match=r"one job has one value, but 2 are given; `rolecall sweep`"):
        single_value("a", [1, 2])


@pytest.mark.parametrize(
    ("path", "value", "owner"),
    [
        ("params.batch_size", 64, {**JOB["params"], "batch_size": 64}),
        ("params.lr_schedule.shape", "cosine", {**JOB["params"], "lr_schedule": {"shape": "cosine"}}),
        ("params.model", {"builder": "a:b"}, {**JOB["params"], "model": {"builder": "a:b"}}),
        (
            "params.data.numeric.1.log",
            False,
            {**JOB["params"], "data": {"numeric": ["age", {"column": "pay", "log": False}]}},
        ),
    ],
)
def test_a_value_is_set_in_a_copy(path: str, value: Any, owner: dict[str, Any]) -> None:
    before = json.dumps(JOB)
    assert with_value(JOB, path, value) == {"workload": "w", "params": owner}
    assert with_value(JOB, "roles.stage", 2) == {**JOB, "roles": {"stage": 2}}
    assert json.dumps(JOB) == before


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("params.model.builder", 'params.model is "resnet18", which has no fields; set params.model'),
        ("params.data.numeric.2", "params.data.numeric has 2 entries; valid: params.data.numeric.0 to"),
        ("params.data.numeric.first", "params.data.numeric has 2 entries"),
    ],
)
def test_a_path_through_a_value_without_fields_is_refused(path: str, said: str) -> None:
    with pytest.raises(CommandError, match=said) as caught:
        with_value(JOB, path, 1)
    assert caught.value.code is Exit.USAGE


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[1]", b'"job"', b"[" * 100_000])
def test_what_is_no_job_is_refused(body: bytes) -> None:
    with pytest.raises(CommandError, match=r"^job\.json is not ") as caught:
        parse_job("job.json", body)
    assert caught.value.code is Exit.USAGE


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "line 1, column 1: it is empty"),
        (b"{", "line 1, column 2: it ends too early; add what is missing, such as a closing } or ]"),
        (b"{'a': 1}", "line 1, column 2: text and names need double quotes instead of single ones"),
        (b"{a: 1}", 'line 1, column 2: a name in double quotes is missing, such as "name"'),
        (b'{\n"a": 1,\n}', "line 3, column 1: there is a comma before the closing }; remove it"),
        (b'{"a": [1, ]}', "line 1, column 11: there is a comma before the closing ]; remove it"),
        (b'{"a" 1}', "line 1, column 6: a colon is missing after the name"),
        (b'{"a": 1\n"b": 2}', "line 2, column 1: a comma is missing, or a closing bracket"),
        (b'{"a": yes}', 'line 1, column 7: a value is missing; text needs double quotes, as in "text"'),
        (b'{"a": "x}', 'line 1, column 7: the text that begins here has no closing "'),
        (b'{"a": "\\q"}', "line 1, column 8: a backslash in text needs a second one: write \\\\"),
        (b"{} {}", "line 1, column 4: there is more text after the end of the value; remove it"),
        (b"// a\n{}", "line 1, column 1: JSON has no comments; remove it"),
        (b"# A title\n\nText", "it doesn't begin with {; if it is YAML, rename it to end with .yaml or .yml"),
        (b"workload: w", "it doesn't begin with {; if it is YAML, rename it to end with .yaml or .yml"),
        (b"\xff", "it is not UTF-8 text; save it as UTF-8"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"1" * 5000, "a number has too many digits"),
    ],
)
def test_an_error_of_json_says_in_plain_words_what_to_do(body: bytes, said: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_job("job.json", body)
    assert str(caught.value) == f"job.json is not JSON: {said}"


@pytest.mark.parametrize("sets", [(), ("params.epochs=1",)])
def test_a_file_that_is_not_json_is_named(tmp_path: Path, sets: tuple[str, ...]) -> None:
    (file := tmp_path / "job.json").write_text('{"workload": "rnn-lm",\n"params": {},}')
    with pytest.raises(CommandError, match=r"job\.json is not JSON: .*line 2") as caught:
        changed_job(str(file), sets)
    assert caught.value.code is Exit.USAGE


def test_yaml_has_the_values_of_json(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "workload: w  # a comment\nparams: {lr: 1e-3, eps: .5, steps: 10, model: no, day: 2026-01-01, big: .inf}\n"
        'roles:\n  stage: 2\nname: "7"\ndeadline_s:\nlist: &l [true, ~]\nagain: *l\n'
    )
    params = {"lr": 0.001, "eps": 0.5, "steps": 10, "model": "no", "day": "2026-01-01", "big": ".inf"}
    rest = {"roles": {"stage": 2}, "name": "7", "deadline_s": None, "list": [True, None], "again": [True, None]}
    assert json.loads(read_job(str(file))) == {"workload": "w", "params": params, **rest}
    changed = json.loads(changed_job(str(file), ["params.lr=1"]))
    assert (changed["params"]["lr"], changed["name"]) == (1, "7")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\na: 2", "line 2, column 1: 'a' is given twice"),
        ("1: 2", "'1' must be text; write it in quotes"),
        ("a: !!python/object:os.system x", "the tag tag:yaml.org,2002:python/object:os.system is not valid; remove it"),
        ("a: !!binary abcd", "binary is not valid"),
        ("a: !!int b", "line 1, column 4: b is not an integer"),
        ("a: &x [*x]", "a value contains itself"),
        ("&x {a: [*x]}", "a value contains itself"),
        ("a: [-1e999]", "line 1, column 5: -1e999 is too large"),
        ("[" * 1000, "nested too deeply"),
        ("a: 1\n---\nb: 2", "line 2, column 1: a second document begins here"),
        ("a: [1,", "line 1, column 7: it ends too early; add what is missing"),
        ("a: [1", r"line 1, column 6: the list that begins in line 1 needs a comma or its closing \] here"),
        ("a: {b: 1\nc: 2", "line 2, column 2: the mapping that begins in line 1 needs a comma or its closing } here"),
        ("a:\n\tb: 1", "line 2, column 1: a tab can't indent a line; use spaces"),
        ("a: @x", "line 1, column 4: text can't begin with @; write it in quotes"),
        ("a: b: c", "line 1, column 5: a colon is not valid here; indent names of one level alike"),
        ("- a\nb: 1", "line 2, column 1: the indentation of this line fits neither"),
        ("a: 'x", "the text in quotes that begins in line 1 has no closing quote"),
        ('a: "x\\q"', r"\\q is not valid in double quotes; write \\\\q, or use single quotes"),
        ("a: *x", r"\*x is not defined"),
        ("a: 1\nsteps 3\n", "the line that begins in line 2 has no colon; write NAME: VALUE"),
        ("a: }", "line 1, column 4: a value is missing before }"),
        ("a: - 1", "line 1, column 4: an entry of a list can't begin here"),
        ("? [a]\n: 1", "line 1, column 3: the name must be text"),
        ("&a a: 1\nb: &a x", "the anchor is given twice"),
        ("%x", "a directive can't begin here"),
        ("a: \0", r"it has the character U\+0000"),
    ],
)
def test_other_yaml_is_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text(text)
    with pytest.raises(CommandError, match=f"job.yml is not valid YAML: .*{said}") as caught:
        read_job(str(file))
    assert caught.value.code is Exit.USAGE
    assert "\n" not in str(caught.value)
