"""The decoder, and how it is cut."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from rolecall.workloads.transformer_pipeline.build import balanced_layers, build_decoder, head_cost
from rolecall.workloads.transformer_pipeline.model import Cut, Decoder, LanguageModel, RotaryEmbedding, Shape

SHAPE = Shape(vocabulary=31, context=12, layers=3, dim=16, heads=2, hidden=24, positions="rope")
CPU = torch.device("cpu")


def decoder(shape: Shape = SHAPE, cut: Cut | None = None) -> Decoder:
    return build_decoder(shape, cut, seed=1, dtype=torch.float64, device=CPU).eval()


def tokens(rows: int = 3) -> torch.Tensor:
    return torch.randint(31, (rows, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_no_token_sees_a_later_one(positions: str) -> None:
    model, given = decoder(replace(SHAPE, positions=positions)), tokens()
    changed = given.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 31
    before, after = model(given), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_order_matters_and_other_samples_do_not(positions: str) -> None:
    model, given = decoder(replace(SHAPE, positions=positions)), tokens()
    torch.testing.assert_close(model(given)[1:2], model(given[1:2]), rtol=0, atol=1e-12)
    swapped = given[:, [1, 0, *range(2, 12)]]
    assert not torch.allclose(model(given)[:, -1], model(swapped)[:, -1], atol=1e-6)


def test_rotated_products_depend_on_distances_alone() -> None:
    rotation = RotaryEmbedding(12, 8).double()
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    queries, keys = rotation(query.expand(1, 1, 12, 8))[0, 0], rotation(key.expand(1, 1, 12, 8))[0, 0]
    products = queries @ keys.T
    torch.testing.assert_close(products[5, 2], products[9, 6], rtol=1e-6, atol=1e-6)
    assert not torch.isclose(products[5, 2], products[5, 4])


def test_stages_one_after_the_other_are_the_whole_decoder() -> None:
    x = tokens()
    expected = decoder()(x)
    for layer in range(3):
        x = decoder(SHAPE, Cut(layer, layer + 1, embeds=layer == 0, predicts=layer == 2))(x)
    assert torch.equal(x, expected)


def test_the_perplexity_of_a_diverged_model_is_infinite() -> None:
    tokenizer = Tokenizer(WordLevel({chr(97 + i): i for i in range(31)}, unk_token="a"))
    tokenizer.pre_tokenizer = Whitespace()
    diverged = decoder()
    for parameter in diverged.parameters():
        parameter.data *= 1000
    assert LanguageModel(diverged, tokenizer, SHAPE.context).perplexity("d e f g h") == math.inf


@pytest.mark.parametrize(
    ("layers", "stages", "head", "sizes"),
    [
        (8, 2, 0.0, [4, 4]),
        (8, 2, 2.0, [5, 3]),
        (8, 4, 2.0, [2, 2, 3, 1]),
        (4, 4, 9.0, [1, 1, 1, 1]),
        (7, 3, 0.0, [2, 2, 3]),
    ],
)
def test_the_stage_with_the_output_matrix_gets_fewer_layers(
    layers: int, stages: int, head: float, sizes: list[int]
) -> None:
    firsts = balanced_layers(layers, stages, head)
    assert [end - first for first, end in pairwise([0, *firsts, layers])] == sizes


def test_the_output_matrix_costs_its_weights() -> None:
    layer = sum(weight.numel() for name, weight in decoder().named_parameters() if name.startswith("layers.0."))
    assert head_cost(SHAPE) == pytest.approx(31 * 16 / layer)
