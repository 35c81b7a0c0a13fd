import pytest

from rolecall.spec.similar import most_similar


@pytest.mark.parametrize(
    ("given", "names", "expected"),
    [
        ("learing_rate", ["learning_rate", "momentum"], "learning_rate"),
        ("1f1b", ["GPipe", "1F1B"], "1F1B"),
        ("learning_rate", ["betas", "eps", "lr", "name"], "lr"),
        ("Learning-Rate", ["LR"], "LR"),
        ("lr", ["epochs", "learning_rate"], "learning_rate"),
        ("opt", ["optimizer", "epochs"], "optimizer"),
        ("embedding_dim", ["embedding", "rows"], "embedding"),
        # Two names begin with it.
        ("dat", ["dataset_of_images", "database_of_words"], None),
        # Too short: it would fit by chance.
        ("e", ["environment_settings"], None),
        ("rate", ["r"], None),
        ("momentum", ["lr", "eps"], None),
        ("", ["lr"], None),
        ("_", ["lr"], None),
        ("x", [], None),
    ],
)
def test_the_most_similar_name_is_one_written_almost_alike_or_an_abbreviation(
    given: str, names: list[str], expected: str | None
) -> None:
    assert most_similar(given, names) == expected
