# pyright: standard
"""The decoder, for training and in exported models, which contain this file unchanged.

    from model import load
    model = load(".")
    print(model.generate("It is a truth", tokens=50))

Requires torch, safetensors and tokenizers, and for a custom model the package that builds it.

A causal pre-norm transformer as GPT-2 (Radford et al., 2019), with learned or rotary (Su et al., 2021) positions and
untied input and output embeddings.
"""

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

MakeLayer = Callable[[int], nn.Module]
"""Builds the layer with the given number, a module from [b, t, dim] to the same shape."""


@dataclass(frozen=True)
class Shape:
    """The hyperparameters of the decoder."""

    vocabulary: int
    context: int
    """The maximum number of tokens in a sequence."""
    layers: int
    dim: int
    heads: int
    hidden: int
    """The hidden width of each layer's feed-forward network."""
    positions: str
    """`rope` or `learned`."""
    dropout: float = 0.0


@dataclass(frozen=True)
class Cut:
    """The part of the decoder in one pipeline stage: layers [first, end), and possibly the embedding or the head."""

    first: int
    end: int
    embeds: bool
    """True if the part has the embedding: its inputs are tokens, not activations."""
    predicts: bool
    """True if the part has the head: its outputs are logits, not activations."""


class RotaryEmbedding(nn.Module):
    """Rotary position embedding (RoPE) of queries and keys."""

    cos: Tensor
    sin: Tensor

    def __init__(self, context: int, size: int) -> None:
        super().__init__()
        rates = 10_000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = torch.arange(context, dtype=torch.float64)[:, None] * rates
        self.register_buffer("cos", angles.cos().to(torch.get_default_dtype()), persistent=False)
        self.register_buffer("sin", angles.sin().to(torch.get_default_dtype()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[b, heads, t, size] to the same shape."""
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.inputs = nn.Linear(shape.dim, 3 * shape.dim, bias=False)
        self.output = nn.Linear(shape.dim, shape.dim, bias=False)
        rotates = shape.positions == "rope"
        self.rotation = RotaryEmbedding(shape.context, shape.dim // shape.heads) if rotates else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[b, t, dim] to the same shape."""
        batch, length, dim = x.shape
        heads = self.inputs(x).view(batch, length, 3, self.heads, dim // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        dropped = self.dropout if self.training else 0.0
        outputs = F.scaled_dot_product_attention(
            self.rotation(query), self.rotation(key), value, dropout_p=dropped, is_causal=True
        )
        return self.output(outputs.transpose(1, 2).reshape(batch, length, dim))


class Layer(nn.Module):
    """A pre-norm transformer layer: attention and feed-forward network with residual connections."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.dim)
        self.attention = Attention(shape)
        # The names `perceptron…` are keys of checkpoints and exports, and seed the initial weights.
        self.perceptron_norm = nn.LayerNorm(shape.dim)
        self.perceptron = nn.Sequential(
            nn.Linear(shape.dim, shape.hidden), nn.GELU(), nn.Linear(shape.hidden, shape.dim)
        )
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[b, t, dim] to the same shape."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.perceptron(self.perceptron_norm(x)))


class Embedding(nn.Module):
    """Token embedding, plus the position embedding if positions are learned."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.dim)
        self.positions = nn.Embedding(shape.context, shape.dim) if shape.positions == "learned" else None
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """[b, t] int64 to [b, t, dim]."""
        x = self.tokens(tokens)
        return self.dropout(x if self.positions is None else x + self.positions.weight[: tokens.shape[1]])


class Head(nn.Module):
    """Final norm and output projection to logits over the vocabulary."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.dim)
        self.output = nn.Linear(shape.dim, shape.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[b, t, dim] to [b, t, vocabulary]."""
        return self.output(self.norm(x))


class Decoder(nn.Module):
    """A whole decoder, or the part in `cut`; parameter names are the same in both."""

    def __init__(self, shape: Shape, cut: Cut | None = None, make_layer: MakeLayer | None = None) -> None:
        super().__init__()
        make = make_layer or (lambda _: Layer(shape))
        cut = cut or Cut(0, shape.layers, embeds=True, predicts=True)
        self.shape = shape
        self.recompute = False
        """Activation checkpointing: whether layers are recomputed in the backward pass."""
        self.embedding = Embedding(shape) if cut.embeds else None
        self.layers = nn.ModuleDict({str(index): make(index) for index in range(cut.first, cut.end)})
        self.head = Head(shape) if cut.predicts else None

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [b, t] int64 or activations [b, t, dim], to activations or logits [b, t, vocabulary]."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x if self.head is None else self.head(x)


class LanguageModel(nn.Module):
    """The complete model with its tokenizer; sequences have at most `context` tokens."""

    def __init__(self, decoder: nn.Module, tokenizer: Tokenizer, context: int) -> None:
        super().__init__()
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.context = context

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [b, t, vocabulary] of the next tokens after tokens [b, t]."""
        return self.decoder(tokens)

    @torch.inference_mode()
    def generate(self, prompt: str, *, tokens: int = 100, temperature: float = 0.8, seed: int = 0) -> str:
        """The prompt, continued by `tokens` sampled tokens, never `<unk>`."""
        ids = self._encoded(prompt)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(tokens):
            logits = self(self._batch(ids[-self.context :]))[0, -1]
            ids.append(sample_token(logits, temperature, generator, self.tokenizer.token_to_id("<unk>")))
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    @torch.inference_mode()
    def perplexity(self, text: str) -> float:
        """Exp of the mean cross-entropy of the text's tokens except the first, cut into sequences as in training."""
        ids, context = self._encoded(text), self.context
        loss = 0.0
        for start in range(0, len(ids) - 1, context):
            given = self._batch(ids[start : min(start + context, len(ids) - 1)])
            wanted = self._batch(ids[start + 1 : start + 1 + given.shape[1]])
            loss += float(F.cross_entropy(self(given)[0], wanted[0], reduction="sum"))
        # Infinite above 709 nats, where `math.exp` fails.
        return float(torch.tensor(loss / (len(ids) - 1), dtype=torch.float64).exp())

    def _batch(self, ids: list[int]) -> Tensor:
        return torch.tensor([ids], device=next(self.parameters()).device)

    def _encoded(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text).ids
        if not ids:
            raise ValueError(f"{text!r} has no tokens; write some text, or a line break to start a new text")
        return ids


def sample_token(logits: Tensor, temperature: float, generator: torch.Generator, unknown: int | None = None) -> int:
    """Sample a token other than `unknown` from logits [vocabulary]; on the CPU, so that all devices agree."""
    scores = logits.double().cpu()
    if unknown is not None:
        scores[unknown] = -torch.inf
    return int(torch.multinomial(torch.softmax(scores / temperature, dim=0), 1, generator=generator))


def load(folder: str | Path) -> LanguageModel:
    """Load the model of an unpacked archive in evaluation mode."""
    folder = Path(folder)
    description = json.loads((folder / "model.json").read_text())
    weights: dict[str, Tensor] = {}
    for path in sorted(folder.glob("model-*.safetensors")):
        weights |= load_file(path)
    decoder = _build(description).to(next(iter(weights.values())).dtype)
    decoder.load_state_dict(weights)
    return LanguageModel(decoder, Tokenizer.from_file(str(folder / "tokenizer.json")), description["context"]).eval()


def _build(description: dict[str, Any]) -> nn.Module:
    own = description["model"]
    if own is None:
        return Decoder(Shape(**description["shape"]))
    module, _, name = own["builder"].partition(":")
    function = getattr(importlib.import_module(module), name)
    if own["builds"] == "model":
        return function(description["vocabulary"], description["context"], **own["arguments"])
    shape = Shape(**description["shape"])
    return Decoder(shape, make_layer=lambda _: function(shape.dim, shape.context, **own["arguments"]))
