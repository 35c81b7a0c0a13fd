"""Scores of language models."""

import math

import pytest

from rolecall.kit.text.scores import perplexity


def test_the_perplexity_of_a_diverged_model_is_infinite() -> None:
    assert perplexity(2.0) == pytest.approx(math.e**2)
    assert math.isfinite(perplexity(709.0))
    assert perplexity(710.0) == perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(math.nan))
