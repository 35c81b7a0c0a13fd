# pyright: standard
"""The language model, for training and in exported models, which contain this file unchanged.

    from model import load
    model = load(".")
    print(model.generate("It is a truth", tokens=50))

Requires torch, safetensors and tokenizers, and for a custom recurrent part the package that builds it.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import _VF, Tensor, nn

State = tuple[Tensor, ...]
"""The recurrent state; for an LSTM hidden and cell state, [layers, b, hidden_dim] each."""


class Recurrent(nn.Module):
    """The layers between embedding and decoder: an LSTM with dropout before, between and after its layers."""

    def __init__(self, embedding_dim: int, hidden_dim: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim, layers, dropout=dropout if layers > 1 else 0.0)

    def forward(self, vectors: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Hidden states [t, b, hidden_dim] of vectors [t, b, embedding_dim], and the final state."""
        given, device = self.dropout(vectors), vectors.device.type
        if torch.is_autocast_enabled(device):
            # Autocast computes cuDNN's LSTM in float16, whatever its dtype (torch's AutocastRNN.cpp), and fails on CPUs
            # without instructions for bfloat16, where oneDNN has no such LSTM.
            with torch.autocast(device, enabled=False):
                hidden, after = self._in_dtype(torch.get_autocast_dtype(device), given, state)
        else:
            hidden, after = self.lstm(given, state)
        return self.dropout(hidden), after

    def _in_dtype(self, dtype: torch.dtype, vectors: Tensor, state: State | None) -> tuple[Tensor, State]:
        """The LSTM, computed in `dtype`; gradients and weights keep theirs."""
        lstm = self.lstm
        size = (lstm.num_layers, vectors.shape[1], lstm.hidden_size)
        before = state or (vectors.new_zeros(size), vectors.new_zeros(size))
        weights = [weight.to(dtype) for weight in lstm.parameters()]
        hidden, *after = _VF.lstm(
            vectors.to(dtype),
            [one.to(dtype) for one in before],
            weights,
            True,  # with biases
            lstm.num_layers,
            lstm.dropout,
            self.training,
            False,  # in one direction
            False,  # time before batch
        )
        return hidden, tuple(after)


class LanguageModel(nn.Module):
    """The complete model: embedding, recurrent part, decoder, and tokenizer."""

    def __init__(self, shape: dict[str, Any], tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.embedding = nn.Embedding(tokenizer.get_vocab_size(), shape["embedding_dim"])
        self.recurrent = _recurrent(shape)
        self.decoder = nn.Linear(shape["hidden_dim"], tokenizer.get_vocab_size())

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Logits [t, b, vocabulary] of the next tokens after tokens [t, b], and the final state."""
        hidden, after = self.recurrent(self.embedding(tokens), state)
        return self.decoder(hidden), after

    @torch.inference_mode()
    def generate(self, prompt: str, *, tokens: int = 100, temperature: float = 0.8, seed: int = 0) -> str:
        """The prompt, continued by `tokens` sampled tokens, never `<unk>`."""
        ids = self._encoded(prompt)
        generator = torch.Generator().manual_seed(seed)
        given, state = torch.tensor(ids), None
        for _ in range(tokens):
            logits, state = self(given.unsqueeze(1).to(self.decoder.weight.device), state)
            given = torch.multinomial(self._token_probabilities(logits[-1, 0], temperature), 1, generator=generator)
            ids.append(int(given))
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    @torch.inference_mode()
    def perplexity(self, text: str) -> float:
        """Exp of the mean cross-entropy of the text's tokens except the first, read as one stream."""
        ids = torch.tensor(self._encoded(text), device=self.decoder.weight.device).unsqueeze(1)
        loss, state = 0.0, None
        for given, wanted in zip(ids[:-1].split(1000), ids[1:].split(1000), strict=True):
            logits, state = self(given, state)
            loss += float(F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum"))
        # Infinite above 709 nats, where `math.exp` fails.
        return float(torch.tensor(loss / (len(ids) - 1), dtype=torch.float64).exp())

    def _token_probabilities(self, logits: Tensor, temperature: float) -> Tensor:
        unknown = self.tokenizer.token_to_id("<unk>")
        if unknown is not None:
            logits[unknown] = -torch.inf
        return (logits.double().cpu() / temperature).softmax(0)

    def _encoded(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text).ids
        if not ids:
            raise ValueError(f"{text!r} has no tokens; write some text, or a line break to start a new text")
        return ids


def _recurrent(shape: dict[str, Any]) -> nn.Module:
    if (own := shape["model"]) is None:
        return Recurrent(shape["embedding_dim"], shape["hidden_dim"], shape["layers"], shape["dropout"])
    module, _, function = own["builder"].partition(":")
    make = getattr(importlib.import_module(module), function)
    return make(shape["embedding_dim"], shape["hidden_dim"], **own["arguments"])


def load(folder: str | Path) -> LanguageModel:
    """Load the model of an unpacked archive in evaluation mode."""
    description = json.loads((Path(folder) / "model.json").read_text())
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    weights = load_file(Path(folder) / "model.safetensors")
    model = LanguageModel(description["shape"], tokenizer)
    model.to(weights["embedding.weight"].dtype).load_state_dict(weights)
    return model.eval()
