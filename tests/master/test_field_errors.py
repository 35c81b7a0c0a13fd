"""Problems of fields with several forms; `test_api.py` has the others, as users get them."""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from copy import deepcopy
from textwrap import dedent
from typing import Annotated, Any, Literal, Self

import pytest
from pydantic import (
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    WrapValidator,
    field_validator,
    model_validator,
)

from rolecall.kit.params import to_object
from rolecall.master.catalogue import load, schema_of
from rolecall.master.field_errors import explain, field_error, shown
from rolecall.spec.api import PruneRequest
from rolecall.spec.errors import InvalidJob
from rolecall.spec.job import JobRequest, JobUpdate
from rolecall.spec.workload import Params


class _Files(Params):
    train: str
    test: str = ""
    skip: int = 0


class _Random(Params):
    rows: int
    skip: int = 0


def _choose(given: Any, _: Any) -> Params:
    return (_Random if "rows" in given else _Files).model_validate(given)


class _Job(Params):
    data: Annotated[_Files | _Random, WrapValidator(_choose)]


def test_an_unknown_field_of_one_form_names_those_of_all_forms() -> None:
    with pytest.raises(ValidationError) as caught:
        _Job.model_validate({"data": {"train": "a", "tets": "b"}})
    (field_error,) = explain(caught.value.errors(), _Job.model_json_schema(), ("params",))
    assert field_error == {
        "field": "params.data.tets",
        "message": "there is no field 'tets'; did you mean 'test'?",
        "given": '"tets"',
        "legal": "rows, skip, test, train",
    }


class _Adam(Params):
    name: Literal["adam"]
    lr: float = 0.1


class _Sgd(Params):
    name: Literal["sgd"]
    lr: float = 0.1
    momentum: float = 0.0


_Selected = Annotated[_Adam | _Sgd, Field(discriminator="name")]


class _Optimized(Params):
    own: _Selected | None = None
    short: Annotated[
        _Selected,
        BeforeValidator(to_object("name"), json_schema_input_type=Literal["adam", "sgd"] | _Adam | _Sgd),
    ] = _Adam(name="adam")


@pytest.mark.parametrize("field", ["own", "short"])
def test_an_unknown_field_of_a_selected_form_names_only_those_of_this_form(field: str) -> None:
    given = {field: {"name": "adam", "momentum": 0.9}}
    with pytest.raises(ValidationError) as caught:
        _Optimized.model_validate(given)
    (field_error,) = explain(caught.value.errors(), _Optimized.model_json_schema(), ("params",), given)
    assert field_error == {
        "field": f"params.{field}.momentum",
        "message": "there is no field 'momentum'",
        "given": '"momentum"',
        "legal": "lr, name",
    }


def test_a_field_of_another_form_is_not_suggested_for_itself() -> None:
    with pytest.raises(ValidationError) as caught:
        _Job.model_validate({"data": {"train": "a", "rows": 1}})
    errors = explain(caught.value.errors(), _Job.model_json_schema(), ("params",))
    assert "there is no field 'train'" in [error["message"] for error in errors]


class _Range(Params):
    low: int
    high: int
    names: list[Annotated[str, Field(max_length=2)]] = Field(["a"], min_length=1)

    @field_validator("names")
    @classmethod
    def _check_names(cls, names: list[str]) -> list[str]:
        if "??" in names:
            raise ValueError("'??' is not a valid name, unable to parse it")
        return names

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low must be at most high ({self.high})")
        if len(set(self.names)) < len(self.names):
            raise ValueError("a name is given twice")
        return self


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"low": "x", "high": 1}, "it must be an integer"),
        ({"low": 1.5, "high": 1}, "it must be an integer"),
        ({"low": 1, "high": []}, "it must be an integer"),
        ({"low": 1, "high": 2, "names": []}, "it must have at least 1 item, not 0"),
        ({"low": 1, "high": 2, "names": 3}, "it must be a list"),
        ({"low": 1, "high": 2, "names": ["abc"]}, "it must have at most 2 characters, not 3"),
        ({"low": 1, "high": 2, "names": ["??"]}, "'??' is not a valid name, unable to parse it"),
    ],
)
def test_a_wrong_value_is_described_in_plain_words(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Range.model_validate(values)
    (field_error,) = explain(caught.value.errors(), _Range.model_json_schema(), ("params",))
    assert field_error["message"] == message


def test_a_wrong_key_is_described_with_all_its_rules() -> None:
    with pytest.raises(ValidationError) as caught:
        JobRequest.model_validate({"workload": "toy", "labels": {"-": "x"}})
    (field_error,) = explain(caught.value.errors(), JobRequest.model_json_schema())
    assert (field_error["field"], field_error["message"]) == ("labels.-", "'-' is not a valid name")
    rule = "up to 63 letters, digits, '-', '_' and '.', with a letter or digit first and last"
    assert field_error["legal"] == f"{rule}, also after a DNS name and '/', such as team"


@pytest.mark.parametrize("labels", [{"my team": "x"}, {"team": "data science"}])
def test_a_space_in_a_label_is_named_with_a_valid_example(labels: dict[str, str]) -> None:
    ((name, value),) = labels.items()
    for model, request in ((JobRequest, {"workload": "toy"}), (JobUpdate, {})):
        with pytest.raises(ValidationError) as caught:
            model.model_validate(request | {"labels": labels})
        (field_error,) = explain(caught.value.errors(), model.model_json_schema(), value={"labels": labels})
        assert field_error == {
            "field": f"labels.{name}",
            "message": "it has a space",
            "given": f'"{value if name == "team" else name}"',
            "legal": field_error["legal"],
        }
        assert (", such as data-science" if name == "team" else "'/', such as team") in field_error["legal"]


def test_a_pattern_is_described_in_words_where_there_are_some() -> None:
    change: dict[str, Any] = {"labels": {"team": "!", "long": "x" * 64}}
    with pytest.raises(ValidationError) as caught:
        JobUpdate.model_validate(change)
    schema = JobUpdate.model_json_schema()
    wrong, long = explain(caught.value.errors(), schema)
    assert wrong["message"] == "'!' is not a valid value"
    assert long["message"] == "it must have at most 63 characters, not 64"
    assert wrong["legal"] == long["legal"]
    assert wrong["legal"].startswith("nothing, or up to 63 letters")
    adapter = TypeAdapter(Annotated[str, Field(pattern="^a+$")])
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python("b")
    (field_error,) = explain(caught.value.errors(), adapter.json_schema())
    assert (field_error["message"], field_error["legal"]) == ("'b' is not a valid value", "a string like ^a+$")


@pytest.mark.parametrize("given", ["yesterday", "2026-01-31", "2026-01-31T18:00:00", "", None, []])
def test_a_wrong_time_is_described_with_an_example(given: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        PruneRequest.model_validate({"ended_before": given})
    (field_error,) = explain(caught.value.errors(), PruneRequest.model_json_schema())
    assert field_error["message"] == "it must be a time with its zone"
    assert field_error["legal"] == "a time with its zone, such as 2026-01-31T18:00:00Z"


def test_a_set_with_too_few_different_items_is_an_error() -> None:
    """Pydantic reports only the number of valid items, here with an input that has enough."""
    kind = TypeAdapter(Annotated[set[str], Field(min_length=2)])
    with pytest.raises(ValidationError) as caught:
        kind.validate_python(["a", "a"])
    assert len(explain(caught.value.errors(), kind.json_schema())) == 1


def test_a_rule_about_several_fields_says_itself_what_is_valid() -> None:
    with pytest.raises(ValidationError) as caught:
        _Range.model_validate({"low": 2, "high": 1})
    (field_error,) = explain(caught.value.errors(), _Range.model_json_schema(), ("params",))
    # The message begins with the field that has to change.
    assert (field_error["field"], field_error["message"]) == ("params.low", "low must be at most high (1)")
    assert field_error["given"] == "2"
    assert "legal" not in field_error
    with pytest.raises(ValidationError) as caught:
        _Range.model_validate({"low": 2, "high": 3, "names": ["b", "b"]})
    (field_error,) = explain(caught.value.errors(), _Range.model_json_schema(), ("params",))
    assert (field_error["field"], field_error["message"]) == ("params", "a name is given twice")


@pytest.mark.parametrize(
    ("workload", "params", "field", "given"),
    [
        ("transformer-pipeline", {"text": {"train": "x"}, "cuts": ["layers.9"]}, "params.cuts", '["layers.9"]'),
        ("transformer-pipeline", {"text": {"train": "x"}, "dim": 30}, "params.heads", "null"),
        (
            "transformer-pipeline",
            {"text": {"train": "x"}, "schedule": {"rows": ["0F0,0B0", "1F0,1B0"]}, "micro_batches": 4},
            "params.micro_batches",
            "4",
        ),
        (
            "embedding-ddp",
            {"data": {"synthetic": {"min_batch": 9}}, "batch_size": 8},
            "params.data.synthetic.min_batch",
            "9",
        ),
        (
            "embedding-ddp",
            {"data": {"synthetic": {}}, "pool_at": "server", "staleness": 1},
            "params.pool_at",
            '"server"',
        ),
        ("rnn-lm", {"text": {"synthetic": {"tokens": 9}}, "batch_size": 20}, "params.text.validation", "null"),
        ("rnn-lm", {"text": {}}, "params.text.train", "null"),
        ("reinforce", {"environment": {"id": "gym:"}}, "params.environment.id", '"gym:"'),
        (
            "reinforce",
            {"environment": {"id": "CartPole-v1", "kwargs": {"it": 1, "map": "F" * 20_000}}},
            "params.environment.kwargs",
            '{"it": 1, "map": "FFF',
        ),
        (
            "resnet-pipeline",
            {"data": {"train": "x", "synthetic": {"images": 9, "classes": 2}}},
            "params.data.train",
            "x",
        ),
        ("embedding-ddp", {"data": {"synthetic": {}, "train": "a.csv"}}, "params.data.train", "a.csv"),
    ],
)
def test_a_rule_of_a_workload_names_the_field_that_its_message_begins_with(
    workload: str, params: dict[str, Any], field: str, given: str
) -> None:
    kind = load().workloads[workload].params
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(params)
    (field_error,) = explain(caught.value.errors(), schema_of(kind), ("params",), params)
    assert field_error["field"] == field
    assert field_error["given"].strip('"').startswith(given.strip('"'))


def test_all_conflicts_with_a_protocol_are_reported_at_once() -> None:
    request = JobRequest.model_validate(
        {
            "workload": "embedding-ddp",
            "params": {
                "data": {"synthetic": {}},
                "protocol": "tutorial",
                "staleness": 2,
                "transfer_precision": "bfloat16",
                "lr_schedule": {"shape": "cosine"},
                "loss": "mse",
            },
        }
    )
    with pytest.raises(InvalidJob) as caught:
        load().check_request(request)
    assert {one["field"]: one["given"] for one in caught.value.field_errors} == {
        "params.lr_schedule": '{"shape": "cosine"}',
        "params.staleness": "2",
        "params.transfer_precision": '"bfloat16"',
        "params.loss": '"mse"',
    }


def test_a_rule_without_a_field_at_its_beginning_shows_only_the_fields_that_it_names() -> None:
    with pytest.raises(ValidationError) as caught:
        _Range.model_validate({"low": 2, "high": 3, "names": ["b", "b"]})
    error = caught.value.errors()[0] | {"msg": "Value error, the names don't fit high"}
    (field_error,) = explain([error], _Range.model_json_schema())
    assert json.loads(field_error["given"]) == {"names": ["b", "b"], "high": 3}


def _subclasses(kind: type[Params]) -> set[type[Params]]:
    return {kind, *(inner for one in kind.__subclasses__() for inner in _subclasses(one))}


_UNCHECKED = {
    ("kit.own_schedule.OwnSchedule", text): "caught by a validator that adds the field"
    for text in (
        "f'the schedule has {count:,} tasks; rows can have at most {MAX_ROW_TASKS:,}, and a file (csv) {MAX_TASKS:,}'",
        "f'schedule.csv must be one file; {one_line(self.csv)} names {len(found)}'",
        "f'{found[0].name} has more than {MAX_BYTES} bytes'",
        "f'{found[0].name}: {error}'",
    )
} | {
    ("kit.tables.params.Label", "f\"{' and '.join(given)} describe different kinds of labels; set one of them\""): (
        "`given` has names of fields"
    ),
    ("workloads.reinforce.params.Params", "own"): "the messages of one of two methods",
    ("workloads.resnet_pipeline.params.Params", "str(error)"): "a message of `cut_indices`",
    ("workloads.transformer_pipeline.params.Params", "str(error)"): "of `cut_indices`, or of a method of the class",
}
"""The messages that can't be checked, and why."""


def _messages(owner: type[Params]) -> Iterator[ast.AST]:
    """The expressions of the messages in the code of `owner`, and whatever else could be one."""
    for node in ast.walk(ast.parse(dedent(inspect.getsource(owner)))):
        match node:
            case ast.Yield(value=ast.expr() as text) | ast.Raise(exc=ast.Call(args=[text, *_])):
                yield text
            case ast.Call(func=ast.Name("refuse"), args=[ast.GeneratorExp(elt=text)]):
                yield text
            case ast.Call(func=ast.Name("refuse"), args=[ast.List(elts=texts)]):
                yield from (text.value if isinstance(text, ast.Starred) else text for text in texts)
            case ast.Call(func=ast.Name("refuse"), args=[text]):
                yield text
            case ast.Raise() | ast.YieldFrom():
                yield node
            case _:
                pass


def _begins_with_field(owner: type[Params], message: ast.AST) -> bool:
    match message:
        case ast.Constant(value=str() as text) | ast.JoinedStr(values=[ast.Constant(value=str() as text), *_]):
            return (found := re.match(r"\w+", text)) is not None and found[0] in owner.model_fields
        case ast.JoinedStr(values=[ast.FormattedValue(value=ast.Name("name")), *_]):
            return True  # A message for each of several fields.
        case ast.Call(func=ast.Attribute(value=ast.Name("self"))):
            return True  # A method of the class, whose messages are checked.
        case _:
            return False


def test_every_message_of_a_validator_of_parameters_begins_with_the_field_that_is_wrong() -> None:
    load()
    owners = [one for one in _subclasses(Params) if one.__module__.startswith("rolecall.")]
    messages = [(owner, message) for owner in owners for message in _messages(owner)]
    assert len(messages) > 60
    unnamed = {
        (f"{owner.__module__.removeprefix('rolecall.')}.{owner.__name__}", ast.unparse(message))
        for owner, message in messages
        if not _begins_with_field(owner, message)
    }
    assert unnamed == _UNCHECKED.keys()


def _set(path: str, value: Any) -> Any:
    """A function that sets the value at `path` in an example's parameters."""

    def change(params: dict[str, Any]) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            params = params[parent]
        params[name] = value

    return change


UNIONS: list[tuple[str, Any, list[tuple[str, str, str]]]] = [
    (
        "embedding-ddp",
        _set("data.categorical", [{"colum": "x"}]),
        [
            ("data.categorical.0.column", "it is missing", "string"),
            ("data.categorical.0.colum", "did you mean 'column'?", "column"),
        ],
    ),
    (
        "embedding-ddp",
        _set("data.numeric", [{"column": "age", "transfrom": "buckets"}]),
        [("data.numeric.0.transfrom", "did you mean 'transform'?", "buckets, column, log, transform")],
    ),
    (
        "embedding-ddp",
        _set("dense_optimizer.learning_rate", 1),
        [("dense_optimizer.learning_rate", "did you mean 'lr'?", "betas, eps, lr, name, weight_decay")],
    ),
    (
        "embedding-ddp",
        _set("dense_optimizer", {"name": "adm"}),
        [("dense_optimizer.name", "did you mean 'adam'?", "adam, adamw, sgd")],
    ),
    (
        "embedding-ddp",
        _set("dense_optimizer", {"learning_rate": 1}),
        [
            ("dense_optimizer.name", "it is missing", "adam, adamw, sgd"),
            ("dense_optimizer.learning_rate", "did you mean 'lr'?", "betas, eps, lr, momentum, name, weight_decay"),
        ],
    ),
    (
        "embedding-ddp",
        _set("dense_optimizer", {"name": "adm", "momentun": 1}),
        [
            ("dense_optimizer.name", "did you mean 'adam'?", "adam, adamw, sgd"),
            ("dense_optimizer.momentun", "did you mean 'momentum'?", "betas, eps, lr, momentum, name, weight_decay"),
        ],
    ),
    (
        "embedding-ddp",
        _set("dense_optimizer", {"lr": 1}),
        [("dense_optimizer.name", "it is missing", "adam, adamw, sgd")],
    ),
    (
        "reinforce",
        _set("environment", {"id": "CartPole-v1", "kwarg": {}}),
        [("environment.kwarg", "did you mean 'kwargs'?", "kwargs")],
    ),
    ("reinforce", _set("algorithm", {"name": "sac"}), [("algorithm.name", "there is no name 'sac'", "ppo, reinforce")]),
    (
        "resnet-pipeline",
        _set("data.train", {"image": "x", "labels": "y"}),
        [
            ("data.train.images", "it is missing", "string"),
            ("data.train.image", "did you mean 'images'?", "images, labels"),
        ],
    ),
    (
        "resnet-pipeline",
        _set("data.train", 5),
        [("data.train", "it must be a string, an object or null", "an object with images, labels")],
    ),
    (
        "resnet-pipeline",
        _set("protocol", "1F1B"),
        [("protocol", "'1F1B' is not a valid value; did you mean '1f1b'?", "1f1b, tutorial")],
    ),
    (
        "transformer-pipeline",
        _set("schedule", "1f1b"),
        [("schedule", "'1f1b' is not a valid value; did you mean '1F1B'?", "GPipe, 1F1B, ")],
    ),
    ("transformer-pipeline", _set("schedule", 3), [("schedule", "it must be a string or an object", "GPipe, 1F1B, ")]),
    ("transformer-pipeline", _set("schedule", {"cvs": "a"}), [("schedule.cvs", "did you mean 'csv'?", "csv, rows")]),
    ("transformer-pipeline", _set("schedule", {}), [("schedule.csv", "set either", "")]),
    (
        "transformer-pipeline",
        _set("schedule", {"rows": [1, None]}),
        # The list has two items, of which none is valid.
        [("schedule.rows.0", "it must be a string", "string"), ("schedule.rows.1", "it must be a string", "string")],
    ),
    (
        "transformer-pipeline",
        _set("schedule", {"rows": []}),
        [("schedule.rows", "must have at least 1 item, not 0", "")],
    ),
    ("reinforce", _set("algorithm", {"gamma": 1}), [("algorithm.name", "it is missing", "ppo, reinforce")]),
    ("embedding-ddp", _set("optimizer", {"lr": 1}), [("optimizer.name", "it is missing", "adam, ")]),
    (
        "embedding-ddp",
        _set("data.numeric", [{"column": "age", "transfrom": "b", "bukets": 3}]),
        [
            ("data.numeric.0.transfrom", "did you mean 'transform'?", "buckets, column, log, transform"),
            ("data.numeric.0.bukets", "did you mean 'buckets'?", "buckets, column, log, transform"),
        ],
    ),
    (
        "reinforce",
        _set("environment", {"idd": "CartPole-v1", "kwarg": {}}),
        [
            ("environment.id", "it is missing", "string"),
            ("environment.idd", "did you mean 'id'?", "kwargs"),
            ("environment.kwarg", "did you mean 'kwargs'?", "kwargs"),
        ],
    ),
]


_PATHS = "a string of 1 to 4,096 characters or a list of 1 to 50,000 strings"
_SPLIT = f"a number ≥ 0 and < 1 or {_PATHS}"
_OPTIMIZER = 'an object whose name is sgd, adam or adamw, such as {"name": "sgd"}'
_ALGORITHM = 'reinforce, ppo or an object whose name is reinforce or ppo, such as {"name": "reinforce"}'
_LABEL = "a string of at most 1,024 characters or an object with column, positive, classes, numeric"
UNIONS.extend(
    [
        # A single value is not the first item of a list, and what stands for an object has no fields.
        (
            "rnn-lm",
            _set("text.validation", True),
            [("text.validation", "it must be a number, a string or a list", _SPLIT)],
        ),
        (
            "rnn-lm",
            _set("text.validation", ""),
            [("text.validation", "it must have at least 1 character, not 0", _SPLIT)],
        ),
        (
            "reinforce",
            _set("environment", ""),
            [("environment", "at least 1 character, not 0", "1 to 1,024 characters")],
        ),
        ("rnn-lm", _set("text.validation", 1.5), [("text.validation", "it must be less than 1", _SPLIT)]),
        ("rnn-lm", _set("text.validation", []), [("text.validation", "it must have at least 1 item, not 0", _SPLIT)]),
        ("rnn-lm", _set("text.validation", ["a", 5]), [("text.validation.1", "it must be a string", "")]),
        ("rnn-lm", _set("text.train", 5), [("text.train", "it must be a string, a list or null", f"{_PATHS} or null")]),
        ("embedding-ddp", _set("data.label", "x" * 2000), [("data.label", "it must have at most 1,024", _LABEL)]),
        ("embedding-ddp", _set("data.label", 5), [("data.label", "it must be a string or an object", _LABEL)]),
        (
            "embedding-ddp",
            _set("data", {"synthetic": {"label": 1}}),
            [("data.synthetic.label", "or equal to 2", "binary")],
        ),
        ("reinforce", _set("algorithm", "sac"), [("algorithm", "there is no algorithm 'sac'", "ppo, reinforce")]),
        ("reinforce", _set("policy", "custom"), [("policy.builder", "it is missing", "a function as module:function")]),
        ("reinforce", _set("algorithm", 5), [("algorithm", "it must be a string or an object", _ALGORITHM)]),
        (
            "reinforce",
            _set("optimizer", "adam"),
            [("optimizer", "it must be an object or null", f"{_OPTIMIZER} or null")],
        ),
        ("rnn-lm", _set("optimizer", "adam"), [("optimizer", "it must be an object", _OPTIMIZER)]),
        (
            "rnn-lm",
            _set("epochs", 2**30),
            [("epochs", "it must be less than or equal to 2^24", "an integer from 1 to 2^24")],
        ),
    ]
)


@pytest.mark.parametrize(("workload", "change", "expected"), UNIONS)
def test_errors_through_unions_name_the_field_the_nearest_name_and_what_is_legal(
    workload: str, change: Any, expected: list[tuple[str, str, str]]
) -> None:
    installed = load()
    example = deepcopy(installed.example(workload))
    assert example is not None
    change(example["params"])
    with pytest.raises(InvalidJob) as caught:
        installed.check_request(JobRequest.model_validate(example))
    assert len(caught.value.field_errors) == len(expected)
    for error, (field, message, legal) in zip(caught.value.field_errors, expected, strict=True):
        assert error["field"] == f"params.{field}"
        assert message in error["message"]
        assert legal in error.get("legal", "")


@pytest.mark.parametrize("size", [10, 10_000])
def test_a_given_value_is_shown_without_credentials_of_any_length_and_characters(size: int) -> None:
    secret = 'hush" |' * size
    url = f"s3://key:{secret}@bucket/x"
    for given in (url, [url], {"train": url}, {url: 1}):
        assert "hush" not in shown(given)
        assert "s3://***" in shown(given)


@pytest.mark.parametrize(
    "given", ["AWS_SECRET_ACCESS_KEY=hunter2 " + "x" * 9000, {"password": "hunter2", "z": "x" * 9000}]
)
def test_a_secret_at_the_beginning_of_a_long_value_is_hidden(given: Any) -> None:
    text = given if isinstance(given, str) else str(given)
    error = field_error(text, text, given, "")
    for part in ("field", "message", "given"):
        assert "hunter2" not in error[part]
        assert "***" in error[part]


@pytest.mark.parametrize("value", ["hunter2", ["hunter2"], {"value": "hunter2"}, 1234])
def test_an_error_shows_no_secret_that_a_document_hides(value: Any) -> None:
    found = shown({"kwargs": {"api_key": value, "map": "4x4"}})
    assert found == '{"kwargs": {"api_key": %s, "map": "4x4"}}' % ('"***"' if isinstance(value, str) else "***")
