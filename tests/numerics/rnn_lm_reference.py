# pyright: standard
"""`rnn-lm` in one process, written without the service: what every gang must reproduce."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer
from torch import Tensor

from rolecall.kit.data_order import derive_seed
from rolecall.kit.parameter_server import ShardSpec
from rolecall.kit.precision import weight_dtype
from rolecall.kit.text.corpus import open_corpus
from rolecall.workloads.rnn_lm.build import sharded_vocabulary
from rolecall.workloads.rnn_lm.export import shape_of
from rolecall.workloads.rnn_lm.model import LanguageModel, Recurrent, State
from rolecall.workloads.rnn_lm.params import Params

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass
class Reference:
    """Every step's mean loss, the perplexities and the weights after the last step."""

    losses: list[float] = field(default_factory=list)
    perplexity: dict[str, float] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)


def batchify(tokens: Tensor, streams: int) -> tuple[Tensor, Tensor]:
    """[t, b] inputs and targets: the text in equal parts, one column each."""
    length = (len(tokens) - 1) // streams
    inputs, targets = (tokens[start : start + streams * length].long() for start in (0, 1))
    return inputs.view(streams, length).t(), targets.view(streams, length).t()


def first_model(params: Params, tokenizer: Tokenizer) -> LanguageModel:
    """The model that the gang begins with."""
    model, vocabulary = LanguageModel(shape_of(params), tokenizer), tokenizer.get_vocab_size()
    torch.manual_seed(params.seed)
    model.recurrent = Recurrent(params.embedding_dim, params.hidden_dim, params.layers, params.dropout)
    torch.manual_seed(params.seed + 1)
    model.to(weight_dtype(params.precision))
    with torch.no_grad():
        whole = ShardSpec(0, 1, vocabulary)
        embedding, decoder = (module.make(whole) for module in sharded_vocabulary(params, vocabulary, 1))
        model.embedding.load_state_dict(embedding.state_dict())
        model.decoder.load_state_dict(decoder.state_dict())
    return model


def tutorial_logits(model: LanguageModel, params: Params, given: Tensor, state: State | None) -> tuple[Tensor, State]:
    """Logits with dropout where the tutorial has it: the first and the last mask have seeds."""
    emb = dropped(model.embedding(given), params.dropout)
    hidden, after = cast(Recurrent, model.recurrent).lstm(emb, state)
    return model.decoder(dropped(hidden, params.dropout)), after


def dropped(values: Tensor, rate: float) -> Tensor:
    """The mask of the next seed, drawn without the service's code."""
    generator = torch.Generator().manual_seed(int(torch.randint(2**63 - 1, (1,))))
    return values * torch.empty_like(values).bernoulli_(1 - rate, generator=generator) / (1 - rate)


def random_state(params: Params) -> State:
    """As the tutorial draws it, with the service's seed."""
    generator = torch.Generator().manual_seed(derive_seed(params.seed, 2))
    size, dtype = (params.layers, params.batch_size, params.hidden_dim), weight_dtype(params.precision)
    return tuple(torch.randn((2, *size), generator=generator, dtype=dtype))


def train_alone(params: Params, cache: Path) -> Reference:
    """Plain PyTorch: one model, one optimizer, truncated back-propagation through the whole batch."""
    corpus = open_corpus(params.text, cache)
    model = first_model(params, corpus.tokenizer)
    arguments = params.optimizer.model_dump(exclude={"name"})
    optimizer = OPTIMIZERS[params.optimizer.name](model.parameters(), **arguments)
    inputs, targets = batchify(corpus.tokens("train"), params.batch_size)
    steps_per_epoch = -(-len(inputs) // params.bptt)
    steps = min(params.epochs * steps_per_epoch, params.max_steps or math.inf)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: params.lr_schedule.factor(step, int(steps)))
    reference = Reference()
    random = params.initial_state == "random"
    state = random_state(params) if random else None
    while len(reference.losses) < steps:
        state = state if random else None
        for given, wanted in zip(inputs.split(params.bptt), targets.split(params.bptt), strict=True):
            if len(reference.losses) == steps:
                break
            before = state and tuple(one.detach() for one in state)
            tutorial = params.protocol == "tutorial"
            logits, state = tutorial_logits(model, params, given, before) if tutorial else model(given, before)
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
            optimizer.zero_grad()
            loss.backward()
            if params.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), params.max_grad_norm)
            optimizer.step()
            schedule.step()
            reference.losses.append(loss.item())
    reference.weights = {name: value.detach() for name, value in model.state_dict().items()}
    for split in ("validation", "test"):
        if len(corpus.tokens(split)):
            reference.perplexity[split] = perplexity(model.eval(), *batchify(corpus.tokens(split), params.batch_size))
    return reference


@torch.no_grad()
def perplexity(model: LanguageModel, inputs: Tensor, targets: Tensor) -> float:
    """Over streams [t, b] that are read from beginning to end."""
    total, state = 0.0, None
    for given, wanted in zip(inputs.split(100), targets.split(100), strict=True):
        logits, state = model(given, state)
        total += float(F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum"))
    return math.exp(total / targets.numel())
