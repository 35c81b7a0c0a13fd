# pyright: standard
"""The decoder's loss and gradients in closed form are autograd's, whole or cut into shards over servers."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from rolecall.kit.parameter_server import DecoderShard, ShardSpec, Uniform
from rolecall.kit.parameter_server.decoder import combine_gradient_terms, combine_loss_terms
from rolecall.kit.params import Precision

ROWS, WIDTH = 11, 4


def decoders(count: int, precision: Precision = "float64") -> list[DecoderShard]:
    return [DecoderShard(ShardSpec(index, count, ROWS), WIDTH, Uniform(0, 0.5), precision) for index in range(count)]


def batch(tokens: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, some of them large; targets; the gradient of each token's loss."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, WIDTH, generator=generator, dtype=torch.float64) * 9
    hidden[0] *= 1000
    targets = torch.randint(ROWS, (tokens,), generator=generator)
    return hidden, targets, torch.rand(tokens, generator=generator, dtype=torch.float64)


def assert_equal(found: Tensor | None, expected: Tensor | None) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def assert_mean_gradients(shards: list[DecoderShard], whole: DecoderShard, trainers: int) -> None:
    """`whole` has the sum over the trainers."""
    for index, shard in enumerate(shards):
        for name, parameter in whole.named_parameters():
            assert parameter.grad is not None
            assert_equal(shard.get_parameter(name).grad, parameter.grad[index :: len(shards)] / trainers)


@pytest.mark.parametrize("count", [1, 2, 3, 11])
def test_closed_form(count: int) -> None:
    """Over two steps, the second with fewer tokens, as at the end of a text, and with two trainers."""
    whole, shards = decoders(1)[0], decoders(count)
    for step, tokens in enumerate((20, 13)):
        whole.zero_grad()
        sent: list[list[Tensor]] = [[] for _ in shards]
        for trainer in range(2):
            hidden, targets, of_losses = batch(tokens + trainer, seed=10 * step + trainer)
            hidden.requires_grad_()
            expected = F.cross_entropy(whole(hidden), targets, reduction="none")
            expected.backward(of_losses)
            with torch.no_grad():
                terms = torch.stack([one.loss_and_gradient_terms(hidden, targets, trainer) for one in shards])
                assert_equal(torch.stack([one.loss_terms(hidden, targets) for one in shards]), terms[:, :2])
            assert_equal(combine_loss_terms(terms[:, :2]), expected)
            shares, gradient = combine_gradient_terms(terms)
            assert_equal(of_losses.unsqueeze(1) * gradient, hidden.grad)
            for to, share in zip(sent, shares, strict=True):
                to.append(torch.stack([of_losses * share, of_losses]))
        with torch.no_grad():
            for shard, received in zip(shards, sent, strict=True):
                shard.set_gradients(received)
        assert_mean_gradients(shards, whole, trainers=2)


def test_gradients_of_returned_logits() -> None:
    whole, shards = decoders(1)[0], decoders(3)
    hidden, targets, of_losses = batch(20, seed=0)
    hidden.requires_grad_()
    logits = whole(hidden)
    logits.retain_grad()
    F.cross_entropy(logits, targets, reduction="none").backward(of_losses)
    assert logits.grad is not None
    found = torch.zeros_like(hidden)
    with torch.no_grad():
        for index, shard in enumerate(shards):
            assert_equal(shard.kept_logits(hidden, 0), logits[:, index::3])
            found += shard.hidden_gradient(logits.grad[:, index::3], 0)
            shard.set_gradients([torch.ones(2, 20, dtype=torch.float64)])
    assert_equal(found, hidden.grad)
    assert_mean_gradients(shards, whole, trainers=1)


@pytest.mark.parametrize(
    ("whole_precision", "precision", "tolerance"), [("float64", "float64", 1e-12), ("float32", "bfloat16", 0.03)]
)
def test_bfloat16_hidden_states(whole_precision: Precision, precision: Precision, tolerance: float) -> None:
    """A trainer may send bfloat16. The servers round no further, unless their own precision is bfloat16."""
    whole, shards = decoders(1, whole_precision)[0], decoders(2, precision)
    hidden = torch.randn(20, WIDTH, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(20) % ROWS
    exact = hidden.to(whole.weight.dtype).requires_grad_()
    expected = F.cross_entropy(whole(exact), targets, reduction="none")
    expected.sum().backward()
    shares = torch.empty(0)
    with torch.no_grad():
        for shard in shards:
            shard.loss_and_gradient_terms(hidden, targets, 0)  # The next call uses its memory.
        terms = torch.stack([shard.loss_and_gradient_terms(hidden, targets, 0) for shard in shards])
        torch.testing.assert_close(combine_loss_terms(terms[:, :2]), expected, rtol=0, atol=tolerance)
        shares, gradient = combine_gradient_terms(terms)
        torch.testing.assert_close(gradient, exact.grad, rtol=0, atol=tolerance)
        for shard, share in zip(shards, shares, strict=True):
            shard.set_gradients([torch.stack([share, torch.ones_like(share)])])
    for index, shard in enumerate(shards):
        for name, parameter in whole.named_parameters():
            assert parameter.grad is not None
            found = shard.get_parameter(name).grad
            torch.testing.assert_close(found, parameter.grad[index::2], rtol=0, atol=tolerance)


@torch.no_grad()
def test_calls_use_the_same_memory() -> None:
    (shard,) = decoders(1)
    places: set[int] = set()
    for tokens in (20, 20, 7, 7):
        hidden, targets, _ = batch(tokens, seed=tokens)
        shard.loss_and_gradient_terms(hidden, targets, 0)
        places.add(shard._calls[0].logits.data_ptr())  # pyright: ignore[reportPrivateUsage]
    assert len(places) == 1
