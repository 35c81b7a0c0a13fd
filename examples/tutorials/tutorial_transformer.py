"""The model of PyTorch's tutorial "Introduction to Distributed Pipeline Parallelism", for `transformer-pipeline` jobs.

On nodes with this folder in `ROLECALL_PLUGINS`, a job names `transformer` in `params.model`:

    "model": {"builds": "model", "builder": "tutorial_transformer:transformer", "arguments": {"dim": 512}}
"""

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class ModelArgs:
    """The hyperparameters of the model; the defaults are those of the tutorial."""

    dim: int = 512
    n_layers: int = 8
    n_heads: int = 8
    vocab_size: int = 10_000
    dropout: float = 0.1
    """Dropout rate; the default is that of torch's layer, which the tutorial doesn't change."""
    causal: bool = False
    """False, as in the tutorial: attention is without a mask and over the first dimension of [b, t, dim], so a token
    attends to the tokens at its position in the other samples of its micro-batch, and the result depends on the
    micro-batches. True: a token attends to the earlier tokens of its own sample, as in a language model."""


class Transformer(nn.Module):
    """Decoder layers between an embedding and a projection. Parts that are None or deleted are in another stage."""

    tok_embeddings: nn.Embedding | None
    norm: nn.LayerNorm | None
    output: nn.Linear | None

    def __init__(self, model_args: ModelArgs) -> None:
        super().__init__()
        self.causal = model_args.causal
        self.tok_embeddings = nn.Embedding(model_args.vocab_size, model_args.dim)
        # A ModuleDict keeps the names of the layers when some are deleted.
        self.layers = nn.ModuleDict()
        for layer_id in range(model_args.n_layers):
            self.layers[str(layer_id)] = nn.TransformerDecoderLayer(
                model_args.dim, model_args.n_heads, dropout=model_args.dropout, batch_first=model_args.causal
            )
        self.norm = nn.LayerNorm(model_args.dim)
        self.output = nn.Linear(model_args.dim, model_args.vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [b, t] int64 or activations [b, t, dim], to activations or logits [b, t, vocabulary]."""
        h = self.tok_embeddings(tokens) if self.tok_embeddings is not None else tokens
        mask = nn.Transformer.generate_square_subsequent_mask(h.shape[1], h.device, h.dtype) if self.causal else None
        for layer in self.layers.values():
            h = layer(h, h, tgt_mask=mask, memory_mask=mask)
        h = self.norm(h) if self.norm is not None else h
        return self.output(h).clone() if self.output is not None else h


def transformer(
    vocabulary: int,
    context: int,
    *,
    dim: int = 512,
    layers: int = 8,
    heads: int = 8,
    dropout: float = 0.1,
    causal: bool = False,
) -> Transformer:
    """The model for a text with `vocabulary` tokens; sequences can have any length."""
    return Transformer(ModelArgs(dim, layers, heads, vocabulary, dropout, causal))
