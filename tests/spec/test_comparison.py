"""The differences of jobs."""

from rolecall.spec.comparison import leaves


def test_nested_values_have_paths() -> None:
    given = {"text": {"train": ["a", "b"], "lowercase": True}, "name": "x", "empty": {}}
    found = [("text.train", '["a", "b"]'), ("text.lowercase", "true"), ("name", "x"), ("empty", "{}")]
    assert list(leaves(given)) == found


def test_long_paths_are_not_repeated_for_each_value() -> None:
    """A small job could otherwise fill the master's memory with the names of its parameters."""
    deep: dict[str, object] = {str(number): 0 for number in range(10_000)}
    for level in range(27):
        deep = {f"{level}".ljust(990, "x"): deep}
    size = len(str(deep))
    assert sum(len(name) + len(value) for name, value in leaves(deep)) < 2 * size
