# pyright: standard
"""Parameter documents: drawn from a workload's JSON schema with extremes mixed in, and handwritten worst cases."""

from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

Schema = Mapping[str, Any]
BYTES = 1 << 20
SAME_EACH_TIME = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType] - its metaclass is untyped
)
"""For examples that are large and slow to draw, the same in every run."""
MINIMAL: dict[str, dict[str, Any]] = {
    "embedding-ddp": {"data": {"train": "rows.csv", "label": "y", "categorical": ["c"]}},
    "preflight": {},
    "reinforce": {"environment": "CartPole-v1"},
    "resnet-pipeline": {"data": {"train": "pictures"}},
    "rnn-lm": {"text": {"train": "text"}},
    "transformer-pipeline": {"text": {"train": "text"}},
}
_INTEGERS = (0, 1, -1, 97, 2**16, 99_999_989, 99_999_999, 2**31, 2**32 - 5, 2**32, 2**40, 2**63 - 1, 2**64, 10**300)
_NUMBERS = (0.0, -0.0, 5e-324, 1e-9, 0.999999, 1.0, 1e9, 1e308, float("inf"), float("nan"))
_TEXTS = ("", "a", "ab" * 2000, "x" * 20_000, "a.a" * 400, "\ud800", "\0", "é" * 10_000, "package.module:name")
_REPEATS = (1, 2, 50, 5000)
_JUNK = st.sampled_from(
    [None, True, "", "x" * 10_000, 10**300, [], {}, [[]] * 1000, {str(i): i for i in range(5000)}, ["a"] * 5000]
)


def documents(root: Schema) -> st.SearchStrategy[Any]:
    """Values that `root` (a JSON schema) allows, or nearly: numbers beyond bounds, long texts, wide lists."""
    return _drawn(root, root)


def _drawn(root: Schema, schema: Schema) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        return st.deferred(lambda: _drawn(root, root["$defs"][schema["$ref"].rpartition("/")[2]]))
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return st.one_of([_drawn(root, choice) for choice in choices])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = {"integer": _integer, "number": _number, "string": _text, "array": _list, "object": _object}
    kind = kinds.get(str(schema.get("type")))
    found = kind(root, schema) if kind else st.sampled_from([None, True, False])
    return st.integers(0, 30).flatmap(lambda roll: _JUNK if roll == 0 else found)


def _integer(_root: Schema, schema: Schema) -> st.SearchStrategy[Any]:
    bounds = [schema[key] + step for key in ("minimum", "maximum") if key in schema for step in (-1, 0, 1)]
    return st.sampled_from([*bounds, *_INTEGERS])


def _number(_root: Schema, _schema: Schema) -> st.SearchStrategy[Any]:
    return st.sampled_from(_NUMBERS)


def _text(_root: Schema, _schema: Schema) -> st.SearchStrategy[Any]:
    return st.sampled_from(_TEXTS)


def _list(root: Schema, schema: Schema) -> st.SearchStrategy[Any]:
    items = [_drawn(root, one) for one in schema.get("prefixItems", ())]
    if items:
        return st.tuples(*items).map(list)
    few = st.lists(_drawn(root, schema.get("items", {})), max_size=2)
    return st.tuples(few, st.sampled_from(_REPEATS)).map(lambda pair: pair[0] * pair[1])


def _object(root: Schema, schema: Schema) -> st.SearchStrategy[Any]:
    fields = {name: _drawn(root, one) for name, one in schema.get("properties", {}).items()}
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: one for name, one in fields.items() if name in required},
        optional={name: one for name, one in fields.items() if name not in required},
    )


def nested(depth: int, inner: Any = 0) -> Any:
    """`inner` below `depth` lists."""
    for _ in range(depth):
        inner = [inner]
    return inner


def _wide(count: int, value: Any = 1) -> dict[str, Any]:
    return {f"k{number}": value for number in range(count)}


_COLUMNS = [{"column": f"c{number}", "oops": 1, "ids": "hash"} for number in range(16_000)]
WORST: list[tuple[str, dict[str, Any]]] = [
    ("transformer-pipeline", {"batch_size": 99_999_999, "replicas": 2}),
    ("transformer-pipeline", {"batch_size": 2**32 - 5, "replicas": 7}),
    ("transformer-pipeline", {"batch_size": 2**32 - 5, "micro_batches": 7}),
    ("transformer-pipeline", {"batch_size": 2**31, "micro_batches": 1, "schedule": "DualPipeV"}),
    ("transformer-pipeline", {"dim": 65_521, "heads": 1000}),
    ("transformer-pipeline", {"batch_size": 10**4000}),
    ("transformer-pipeline", {"text": {"train": ["a/b/c/d/e/f"] * 60_000}}),
    ("transformer-pipeline", {"schedule": "x" * 1_000_000}),
    ("transformer-pipeline", {"optimizer": {"name": "x" * 1_000_000}}),
    ("transformer-pipeline", {"model": {"builder": "a:" + "a" * 1_000_000}}),
    ("transformer-pipeline", {"model": {"builder": "a:b", "arguments": _wide(70_000)}}),
    ("transformer-pipeline", {"model": {"builder": "a:b", "arguments": {"deep": [nested(900)] * 550}}}),
    ("transformer-pipeline", {"layers": 1024, "cuts": ["layers.9" * 127] * 1024}),
    ("transformer-pipeline", {"layers": 1024, "cuts": [{"layer": "layers.1023", "at": "end"}] * 16_000}),
    ("transformer-pipeline", {"model": {"builder": "a:b", "builds": "model"}, "cuts": ["x" * 900] * 1024}),
    ("transformer-pipeline", {"cuts": [{"layer": 1, "at": "", "to": 3}] * 1024}),
    ("resnet-pipeline", {"batch_size": 2**32 - 5, "replicas": 4093}),
    ("resnet-pipeline", {"batch_size": 2**32 - 5, "micro_batches": 256}),
    ("resnet-pipeline", {"cuts": [f"block{number}" for number in range(70_000)], "model": "resnet152"}),
    ("resnet-pipeline", {"data": {"train": "p", "augment": ["zoom"] * 130_000}}),
    ("resnet-pipeline", {"data": {"train": {"images": "i", "labels": "l"}, "classes": [1] * 90_000}}),
    ("resnet-pipeline", {"data": {"train": {"images": "i", "labels": "l"}, "classes": ["abcdefgh"] * 65_536}}),
    ("resnet-pipeline", {"data": {"train": [nested(900)] * 550}}),
    ("embedding-ddp", {"data": {"train": "a", "label": "y", "categorical": ["c"] * 99_000}}),
    ("embedding-ddp", {"data": {"train": "a", "label": "y", "categorical": ["c"] * 16_000, "numeric": ["n"] * 16_000}}),
    ("embedding-ddp", {"data": {"train": "a", "label": "y", "categorical": _COLUMNS}}),
    ("embedding-ddp", {"data": {"train": "a", "label": {"column": "y", "positive": [None] * 99_000}}}),
    ("embedding-ddp", {"data": {"train": "a", "label": "y", "missing": [1] * 99_000}}),
    ("embedding-ddp", {"data": {"train": "a", "label": "y", "categorical": [_wide(70_000)]}}),
    ("embedding-ddp", {"data": {"train": "a", "label": "y" * 1_000_000, "categorical": ["c"]}}),
    ("embedding-ddp", {"data": {"train": "a", "label": "y", "categorical": [_wide(90, nested(2))] * 900}}),
    ("embedding-ddp", {"data": {"synthetic": {"label": 50_000}}, "loss": "mse"}),
    ("embedding-ddp", {"data": {"synthetic": {"columns": 1024, "ids": 2**31, "label": 50_000}}, "early_stopping": {}}),
    ("embedding-ddp", {"data": {"synthetic": {}, "train": ["a"] * 49_000}}),
    ("embedding-ddp", {"data": {"train": "a", "label": {"column": "y", "classes": [f"{i:x}" for i in range(49_900)]}}}),
    ("embedding-ddp", {"data": {"train": "a", "label": {"column": "y", "classes": ["a"] * 49_900}}}),
    ("embedding-ddp", {"data": {"train": "a", "label": {"column": "y", "classes": [[]] * 49_900}}}),
    ("embedding-ddp", {"hidden": [1] * 99_000}),
    ("embedding-ddp", _wide(70_000)),
    ("embedding-ddp", {"k" * 1_000_000: 1}),
    ("embedding-ddp", {"\ud800": 1}),
    ("embedding-ddp", {"hidden": [[]] * 330_000}),
    ("rnn-lm", {"sample": {"prompt": " " * 1_000_000}}),
    ("rnn-lm", {"sample": {"prompt": "\ud800" * 100_000}}),
    ("rnn-lm", {"text": {"train": "t", "validation": [0.1] * 90_000}}),
    ("rnn-lm", {"init_range": float("nan"), "dropout": float("inf")}),
    ("rnn-lm", {"text": {"synthetic": {"tokens": 2**30}}, "sample": {"prompt": "9" * 65_536}}),
    ("reinforce", {"environment": {"id": "E", "wrappers": ["W"] * 99_000}}),
    ("reinforce", {"environment": {"id": "E", "wrappers": [{"entry_point": "a" * 900_000 + ":"}]}}),
    ("reinforce", {"environment": {"id": "E", "kwargs": {"deep": [nested(900)] * 550}}}),
    ("reinforce", {"environment": {"id": "E" * 1_000_000}}),
    ("reinforce", {"policy": {"name": "mlp", "hidden": ["1"] * 99_000}}),
    ("reinforce", {"algorithm": "x" * 1_000_000}),
    ("reinforce", {"environment": {"id": "gym:" + "a" * 1_000_000}, "target_return": "threshold"}),
    ("reinforce", {"target_return": "x" * 1_000_000}),
    ("preflight", {"nodes": [f"node-{number}" for number in range(60_000)]}),
    ("preflight", {"nodes": [1] * 99_000}),
]
