"""Names and values as MLflow takes them."""

from rolecall.trackers.mlflow_values import usable


def test_different_names_stay_different() -> None:
    names = ["", ".", "..", "../a", "/a", "a/", "a//b", "a/b", "a?b", "a!b", "n" * 300, "n" * 301]
    assert len({usable(name) for name in names}) == len(names)
