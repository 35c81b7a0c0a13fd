# pyright: standard
"""Parameters of a job, the errors of invalid ones, and how they get from the master to workers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rolecall.workloads.embedding_ddp.params import Params

EXAMPLE = Path(__file__).parents[3] / "examples" / "embedding-ddp.json"
DATA: dict[str, Any] = {"train": "rows.csv", "label": "y", "categorical": ["c"], "numeric": ["n"]}

CLASSES = DATA | {"label": {"column": "y", "classes": ["a", "b", "c"]}}
NUMBER = DATA | {"label": {"column": "y", "numeric": True}}
SGD = {"name": "sgd", "lr": 0.05}

lr = st.floats(1e-9, 10)
share = st.floats(0, 1, exclude_max=True)
eps = st.floats(1e-12, 1)
decay = st.floats(0, 1)
numbers = st.integers(-(2**63), 2**64 - 1)
names = st.text("abcdef", min_size=1)
paths = st.lists(names, min_size=1, max_size=3) | names


def fields(required: dict[str, Any], **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with all required fields and any of the optional ones."""
    return st.fixed_dictionaries(
        {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in required.items()},
        optional=optional,
    )


categorical = st.one_of(
    fields({"max_values": st.integers(2, 9)}, separator=st.sampled_from("|;"), min_count=st.integers(1, 9)),
    fields({"ids": "hash", "buckets": st.integers(1, 2**31)}, max_values=st.integers(1, 9)),
    st.just({}),
)
numeric = st.one_of(
    fields({"transform": "buckets"}, buckets=st.integers(2, 10_000)),
    fields({"transform": "normalize"}, log=st.booleans()),
)
label = st.one_of(
    names.map("label {}".format),
    fields(
        {"column": "label"},
        positive=st.one_of(st.text(), numbers, st.booleans(), st.lists(st.text() | numbers, min_size=1)),
    ),
    fields({"column": "label"}, classes=st.just("auto") | st.lists(numbers, min_size=2, unique=True)),
    fields({"column": "label"}, numeric=st.booleans()),
)
synthetic = fields(
    {
        "synthetic": fields(
            {},
            rows=st.integers(1, 10_000),
            test=st.integers(0, 10_000),
            columns=st.integers(1, 9),
            ids=st.integers(1, 2**31),
            max_values=st.integers(1, 9),
            numbers=st.integers(0, 9),
            label=st.sampled_from(["binary", "number"]) | st.integers(2, 99),
            signal=share,
            seed=st.integers(0, 2**63 - 1),
        )
    },
    validation=share,
)
data = synthetic | fields(
    {
        "train": paths,
        "label": label,
        "categorical": st.lists(categorical, min_size=1, max_size=4).map(
            lambda columns: [{"column": f"c{i}"} | column for i, column in enumerate(columns)] + ["plain"]
        ),
        "numeric": st.lists(numeric, max_size=4).map(
            lambda columns: [{"column": f"n{i}"} | column for i, column in enumerate(columns)]
        ),
    },
    test=paths,
    validation=share | paths,
    format=st.sampled_from(["csv", "tsv", "parquet"]),
    missing=st.lists(st.text(st.characters(exclude_categories=["Nd", "Cs"]))),  # no class can be missing
    max_bad_rows=st.integers(0, 9),
    csv=fields({}, delimiter=st.sampled_from(",;\t"), column_names=st.lists(names)),
    stream=st.booleans(),
    shuffle_buffer=st.integers(1, 10_000_000),
)
sparse = st.one_of(
    fields({"name": "sgd"}, lr=lr),
    fields({"name": "adagrad"}, lr=lr, initial_accumulator=decay, eps=eps),
    fields({"name": "sparse-adam"}, lr=lr, betas=st.tuples(share, share), eps=eps),
)
dense = st.one_of(
    fields({"name": "sgd"}, lr=lr, momentum=share, weight_decay=decay),
    fields({"name": st.sampled_from(["adam", "adamw"])}, lr=lr, betas=st.tuples(share, share), weight_decay=decay),
)
bodies = fields(
    {"data": data},
    embedding_dim=st.integers(1, 4096),
    embedding_std=decay,
    pooling=st.sampled_from(["sum", "mean", "none"]),
    hidden=st.lists(st.integers(1, 65_536), max_size=3),
    dropout=share,
    batch_size=st.integers(1, 2**32),
    epochs=st.integers(1, 99),
    max_steps=st.none() | st.integers(1, 2**40),
    seed=st.integers(0, 2**63 - 1),
    protocol=st.sampled_from(["sync", "async", "tutorial"]),
    sparse_optimizer=sparse,
    dense_optimizer=dense,
    precision=st.sampled_from(["float32", "float64"]),
    checkpoint_every_steps=st.none() | st.integers(1, 99),
    checkpoint_every_s=st.none() | st.floats(0.1, 1e6),
)
tutorials = fields({"data": data, "protocol": "tutorial"}, optimizer=dense, pool_at=st.sampled_from(["auto", "server"]))
schedules = fields({}, shape=st.sampled_from(["constant", "cosine"]), warmup_steps=st.integers(0, 99))
stoppings = fields({}, patience=st.integers(1, 99), metric=st.sampled_from([None, "loss"]))


def stored_and_read(params: Params) -> Params:
    """As a worker gets it: dumped, stored as JSON text, validated again."""
    return Params.model_validate(json.loads(json.dumps(params.model_dump(mode="json"))))


def test_the_example_means_the_same_to_the_workers() -> None:
    params = Params.model_validate(json.loads(EXAMPLE.read_text())["params"])
    assert stored_and_read(params) == params


@pytest.mark.slow
@given(body=bodies | tutorials)
def test_whatever_is_legal_means_the_same_to_the_workers(body: dict[str, Any]) -> None:
    params = Params.model_validate(body)
    again = stored_and_read(params)
    assert again == params
    assert type(again.dense_optimizer) is type(params.dense_optimizer)
    assert type(again.data) is type(params.data)


@pytest.mark.slow
@given(body=bodies, schedule=schedules, stopping=stoppings)
def test_so_do_schedules_and_early_stopping(
    body: dict[str, Any], schedule: dict[str, Any], stopping: dict[str, Any]
) -> None:
    body |= {"protocol": "sync", "lr_schedule": schedule, "early_stopping": stopping}
    body["data"] = {**body["data"], "validation": 0.25}
    params = Params.model_validate(body)
    assert stored_and_read(params) == params


def schema_fields(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of every object in a JSON schema, by its dotted name."""
    for owner in (schema, *schema["$defs"].values()):
        for name, field in owner["properties"].items():
            yield f"{owner['title']}.{name}", field


def test_every_field_is_described() -> None:
    found = dict(schema_fields(Params.model_json_schema()))
    assert len(found) > 50
    assert not [name for name, field in found.items() if not field.get("description")]


def refusal(params: dict[str, Any]) -> str:
    """Place and message of each error, as the API shows them."""
    with pytest.raises(ValidationError) as caught:
        Params.model_validate(params)
    problems = caught.value.errors()
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"categorical": [{"column": "c", "buckets": 9}]}, "buckets requires ids: hash; set both or"),
        ({"categorical": [{"column": "c", "ids": "hash"}]}, "buckets requires ids: hash"),
        ({"categorical": [{"column": "c", "ids": "hash", "buckets": 9, "min_count": 2}]}, "requires ids: dictionary"),
        ({"categorical": [{"column": "c", "separator": "|"}]}, "set max_values to 2 or more"),
        ({"categorical": ["c", "c"]}, "categorical lists c more than once; list each once"),
        ({"numeric": ["n", "n"]}, "numeric lists n (normalize) more than once; list each once"),
        ({"numeric": [{"column": "n", "transform": "buckets", "log": True}]}, "log requires transform: normalize"),
        ({"numeric": [{"column": "n", "buckets": 8}]}, "buckets requires transform: buckets"),
        ({"categorical": []}, "list a categorical or a bucketed numeric column"),
        ({"categorical": ["y"]}, "label 'y' can't also be an input; list it once"),
        ({"categorical": [{"column": "c", "ids": "hashed"}]}, "'dictionary' or 'hash'"),
        ({"numeric": [{"column": "n", "transform": "log"}]}, "'normalize' or 'buckets'"),
        ({"format": "json"}, "'csv', 'tsv' or 'parquet'"),
        *(({"csv": {"delimiter": one}}, "String should match pattern") for one in ("", '"', "\n", "\r", "\0", "§")),
        ({"csv": {"delimiter": "||"}}, "at most 1 character"),
        ({"train": []}, "at least 1 item"),
        ({"max_bad_rows": -1}, "greater than or equal to 0"),
    ],
)
def test_a_refusal_of_data_names_what_is_legal(changed: dict[str, Any], expected: str) -> None:
    message = refusal({"data": DATA | changed})
    assert expected in message
    assert message.startswith("data")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"pooling": "max"}, "'sum', 'mean' or 'none'"),
        ({"protocol": "hogwild"}, "'sync', 'async' or 'tutorial'"),
        ({"protocol": "seed"}, '"seed" was renamed: use "tutorial"'),
        ({"precision": "float16"}, "'float32' or 'float64'"),
        ({"sparse_optimizer": {"name": "adam"}}, "'sgd', 'adagrad', 'sparse-adam'"),
        ({"dense_optimizer": {"name": "sparse-adam"}}, "'sgd', 'adam', 'adamw'"),
        ({"dense_optimizer": {"name": "sgd", "lr": 0}}, "greater than 0"),
        ({"dense_optimizer": {"name": "adam", "lr": float("nan")}}, "finite number"),
        ({"dropout": 1}, "less than 1"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"seed": 2**63}, f"less than {2**63}"),
        ({"batch_size": 0}, "greater than or equal to 1"),
        ({"epochs": "many"}, "valid integer"),
        ({"hidden": [0]}, "greater than or equal to 1"),
        ({"lr_schedule": {"shape": "linear"}}, "'constant' or 'cosine'"),
        ({"early_stopping": {"metric": "f1"}}, "'auc', 'accuracy', 'loss', 'rmse' or 'mae'"),
        ({"early_stopping": {"metric": "rmse"}}, "a label that is yes or no; set auc or loss or accuracy"),
        ({"loss": "mse"}, "loss: mse doesn't fit a label that is yes or no; set binary-cross-entropy"),
        ({"data": CLASSES, "loss": "l1"}, "loss: l1 doesn't fit a label with classes; set cross-entropy"),
        ({"data": CLASSES, "early_stopping": {"metric": "auc"}}, "a label with classes; set loss or accuracy"),
        ({"data": NUMBER, "loss": "cross-entropy"}, "a label that is a number; set mse or l1 or huber"),
        ({"data": {"synthetic": {"min_batch": 9}}, "batch_size": 8}, "set it to at most batch_size"),
        ({"pool_at": "server", "pooling": "none"}, "set pooling to sum or mean"),
        ({"pool_at": "server", "staleness": 1}, "set pool_at to auto or trainer"),
        ({"staleness": 9}, "less than or equal to 8"),
        ({"protocol": "tutorial", "staleness": 1}, "no rows ahead; omit staleness"),
        (
            {"protocol": "tutorial", "transfer_precision": "bfloat16"},
            "transfer_precision does not fit protocol: tutorial",
        ),
        ({"precision": "float64", "transfer_precision": "bfloat16"}, "omit transfer_precision, or set float32"),
        ({"protocol": "tutorial", "lr_schedule": {"shape": "cosine"}}, "omit lr_schedule"),
        ({"protocol": "tutorial", "pool_at": "trainer"}, "set pool_at to auto or server"),
        (
            {"optimizer": SGD},
            "optimizer is for protocol: tutorial; with sync, set sparse_optimizer and dense_optimizer",
        ),
        (
            {"protocol": "tutorial", "optimizer": SGD, "dense_optimizer": SGD},
            "dense_optimizer does not fit optimizer, which is for all weights; omit dense_optimizer or optimizer",
        ),
        (
            {"data": DATA | {"validation": 0}, "early_stopping": {}},
            "set data.validation to a share above 0, or to paths",
        ),
    ],
)
def test_a_refusal_names_what_is_legal(changed: dict[str, Any], expected: str) -> None:
    assert expected in refusal({"data": DATA} | changed)


@pytest.mark.parametrize(("step", "factor"), [(0, 0.25), (3, 1.0), (4, 1.0), (7, 0.5), (10, 0.0)])
def test_the_rates_rise_in_a_line_and_fall_as_a_cosine(step: int, factor: float) -> None:
    params = Params.model_validate({"data": DATA, "lr_schedule": {"shape": "cosine", "warmup_steps": 4}})
    assert params.lr_schedule.factor(step, 10) == pytest.approx(factor)


def test_a_job_of_an_earlier_release_stays_legal() -> None:
    """The parameters as a release without classes, numbers and generated rows stored them."""
    label = {"column": "y", "positive": None}
    stored = {
        "data": DATA | {"label": label, "stream": False},
        "protocol": "tutorial",
        "early_stopping": {"metric": "auc"},
    }
    params = Params.model_validate(stored)
    assert (params.loss_name, params.stopping_metric) == ("binary-cross-entropy", "auc")
