# pyright: standard
"""`rnn-lm`: embedding and decoder on parameter servers, compared with one process."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.contest import Contender, Contest, Floor
from benchmarks.goals import RateGoal
from benchmarks.machine import CORES
from benchmarks.processes import SKIPPED, Step, alone, gang
from rolecall.kit.text.corpus import open_corpus
from rolecall.spec.role import Role
from rolecall.workloads.rnn_lm.export import shape_of
from rolecall.workloads.rnn_lm.model import LanguageModel
from rolecall.workloads.rnn_lm.params import Params

STREAMS, BPTT, VOCABULARY = 20, 35, 10_000
TOKENS_PER_STEP = STREAMS * BPTT
STEPS = SKIPPED + 40


def params(**more: Any) -> dict[str, Any]:
    """A vocabulary of 10,000, two LSTM layers of 256, and SGD."""
    return {
        "text": {
            "synthetic": {"tokens": TOKENS_PER_STEP * (STEPS + 1), "vocabulary": VOCABULARY, "source": "markov"},
            "validation": 0.0,
        },
        "embedding_dim": 256,
        "hidden_dim": 256,
        "layers": 2,
        "dropout": 0.0,
        "batch_size": STREAMS,
        "bptt": BPTT,
        "epochs": 1,
        "max_steps": STEPS,
        "optimizer": {"name": "sgd", "lr": 0.5},
        "max_grad_norm": None,
        "checkpoint_every_s": None,
        "sample": {"tokens": 1},
        **more,
    }


def one_process(folder: Path) -> Step:
    """Plain PyTorch: the whole model, with truncated back-propagation through time."""
    own = Params.model_validate(params())
    corpus = open_corpus(own.text, folder / "cache")
    model = LanguageModel(shape_of(own), corpus.tokenizer)
    optimizer = torch.optim.SGD(model.parameters(), lr=own.optimizer.lr)
    tokens = corpus.tokens("train")
    length = (len(tokens) - 1) // STREAMS
    inputs, targets = (
        tokens[begin : begin + STREAMS * length].long().view(STREAMS, length).t().split(BPTT) for begin in (0, 1)
    )
    batches, state = iter(zip(inputs, targets, strict=True)), None

    def step() -> None:
        nonlocal state
        given, wanted = next(batches)
        logits, after = model(given, state)
        state = tuple(one.detach() for one in after)
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def _gang(servers: int, trainers: int, server_threads: int = 1, **more: Any) -> Any:
    roles = {Role.PARAMETER_SERVER: servers, Role.TRAINER: trainers}
    threads = {Role.PARAMETER_SERVER: server_threads}
    return gang("rnn-lm", params(**more), roles, reporter="trainer-0", threads=threads)


_HIDDEN = 256
_MATRICES = 2 * 4 * (_HIDDEN + _HIDDEN) * _HIDDEN + _HIDDEN * VOCABULARY
"""The weights of two LSTM layers with four gates each, and of the decoder."""

CONTESTS = (
    Contest(
        title="rnn-lm",
        unit="tokens",
        work=f"{VOCABULARY:,} words, two LSTM layers of 256, {STREAMS} × {BPTT} tokens per step, SGD",
        contenders=[
            Contender("one process", alone(one_process, STEPS, units_per_step=TOKENS_PER_STEP), is_limit=True),
            Contender("tutorial protocol, 2 + 2", _gang(2, 2, protocol="tutorial")),
            # The trainers wait for the decoder, so that its server can use all cores.
            Contender("sync, 2 servers of two threads, 2 trainers", _gang(2, 2, CORES)),
            Contender("sync, 1 server of two threads, 1 trainer", _gang(1, 1, CORES)),
            Contender("sync, 2 servers, 2 trainers", _gang(2, 2)),
            Contender("sync, 1 server, 1 trainer", _gang(1, 1)),
        ],
        goals=[
            RateGoal("sync, 2 servers of two threads, 2 trainers", 0.9, "one process"),
            RateGoal("sync, 1 server of two threads, 1 trainer", 0.9, "one process"),
        ],
        floor=Floor(
            TOKENS_PER_STEP,
            6 * TOKENS_PER_STEP * _MATRICES,
            3 * 4 * _MATRICES + 4 * 4 * TOKENS_PER_STEP * VOCABULARY,
            "matrix products; SGD's passes over weights, and two over the logits and their gradients",
        ),
    ),
)
