"""Scores of language models."""

import math


def perplexity(loss: float) -> float:
    """The exponential of a mean loss per token in nats: infinity above 709, where it exceeds the largest float."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
