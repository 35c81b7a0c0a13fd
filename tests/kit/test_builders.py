"""A job names a function of its user's own only where the operator allowed it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from rolecall.kit.builders import Builder, build, check_builder, explain_errors
from rolecall.spec.errors import InputError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that the operator allowed, with one module in it."""
    (tmp_path / "their_models.py").write_text("def pair(first, second=2):\n    return first, second\n")
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield tmp_path
    for name in ("their_models", "their_broken"):
        sys.modules.pop(name, None)


def test_a_function_of_an_allowed_folder_is_called(folder: Path) -> None:
    assert build(Builder(builder="their_models:pair"), 1) == (1, 2)
    assert build(Builder(builder="their_models:pair", arguments={"second": 3}), 1) == (1, 3)


def test_a_function_of_an_allowed_package_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_BUILDERS", "json, collections")
    assert build(Builder(builder="json.decoder:JSONDecoder")).decode("1") == 1


@pytest.mark.parametrize("name", ["os:system", "jsonschema:validate", "collections:OrderedDict"])
def test_what_the_operator_did_not_allow_is_refused_and_what_he_did_is_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("ROLECALL_BUILDERS", "json")
    with pytest.raises(InputError, match=r"not allowed .*ROLECALL_BUILDERS\): json; .*" + str(folder)):
        check_builder(Builder(builder=name))


def test_a_function_that_is_not_there(folder: Path) -> None:
    with pytest.raises(InputError, match="has no function or class 'triple'"):
        check_builder(Builder(builder="their_models:triple"))


def test_a_module_that_breaks_on_import(folder: Path) -> None:
    (folder / "their_broken.py").write_text("import there_is_no_such_module\n")
    with pytest.raises(InputError, match=r"can't be imported on this node: .*there_is_no_such_module"):
        check_builder(Builder(builder="their_broken:make"))


def test_arguments_that_the_function_does_not_take(folder: Path) -> None:
    with pytest.raises(InputError, match=r"can't be called with .*third"):
        build(Builder(builder="their_models:pair", arguments={"third": 3}), 1)


def test_an_error_does_not_quote_all_of_large_arguments(folder: Path) -> None:
    with pytest.raises(InputError, match=r"can't be called with") as caught:
        build(Builder(builder="their_models:pair", arguments={"third": "x" * 100_000}), 1)
    assert len(str(caught.value)) < 500


def test_an_error_shows_no_part_of_credentials_in_large_arguments(folder: Path) -> None:
    secret = "'hush\" " * 1000
    arguments = {"third": f"s3://key:{secret}@bucket/x", "other": f"s3://{secret}@bucket/y"}
    with pytest.raises(
        InputError, match=r"can't be called with .*s3://\*\*\*@bucket/x.*s3://\*\*\*@bucket/y"
    ) as caught:
        build(Builder(builder="their_models:pair", arguments=arguments), 1)
    assert "hush" not in str(caught.value)


def test_a_function_that_fails_is_named(folder: Path) -> None:
    (folder / "their_broken.py").write_text("def make(size):\n    raise ValueError(f'{size} is odd')\n")
    with pytest.raises(InputError, match=r"^their_broken:make fails: ValueError: 3 is odd$"):
        build(Builder(builder="their_broken:make"), 3)


def test_an_error_of_custom_code_is_one_of_the_input_with_its_first_line() -> None:
    expected = "^theirs fails: RuntimeError: shapes differ; change them$"
    with pytest.raises(InputError, match=expected), explain_errors("theirs fails", "change them"):
        raise RuntimeError("shapes differ\nframe 1\nframe 2")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), MemoryError("full"), ConnectionError("away")])
def test_errors_that_another_attempt_may_not_have_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, explain_errors("theirs fails"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("name", ["their_models", "their_models.pair", "a b:c", ":f", "m:", "m:f.g"])
def test_a_name_is_module_colon_function(name: str) -> None:
    with pytest.raises(ValidationError):
        Builder(builder=name)
