"""Parameters of `rnn-lm` jobs. Torch-free; docstrings are the API's descriptions."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rolecall.kit import refuse
from rolecall.kit.builders import Builder
from rolecall.kit.params import (
    Adam,
    AdamW,
    BatchSize,
    Fraction,
    LrSchedule,
    Positive,
    Precision,
    RenamedProtocol,
    Sgd,
    TrainingParams,
    changed,
)
from rolecall.kit.text.params import Sample, Text, check_prompt, check_streams


class Params(TrainingParams):
    """The parameters of an `rnn-lm` job."""

    text: Text
    """The text and its tokenization."""
    embedding_dim: Annotated[int, Field(ge=1, le=16_384)] = 256
    """Dimension of the token embeddings."""
    hidden_dim: Annotated[int, Field(ge=1, le=16_384)] = 256
    """Width of each LSTM layer."""
    layers: Annotated[int, Field(ge=1, le=64)] = 2
    """Number of stacked LSTM layers."""
    dropout: Fraction = 0.2
    """Dropout rate of the LSTM's inputs, of the outputs of each of its layers and of the decoder's inputs. With
    `protocol: tutorial`, the servers apply it to the embedding's outputs and the decoder's inputs, the trainers only
    between the LSTM's layers."""
    model: Builder | None = None
    """Custom recurrent module that replaces `layers` and `dropout`: a function that is called with `embedding_dim` and
    `hidden_dim` and returns a torch module. The module is called with vectors [t, b, embedding_dim] and a state, and
    returns hidden states [t, b, hidden_dim] and the next state. A state is a tuple of tensors, or None at the beginning
    of the text."""
    init_range: Positive = 0.1
    """Range of the initial weights of embedding and decoder, which are uniform between minus this value and this
    value."""
    batch_size: BatchSize = 32
    """Number of equal streams into which the text is split. They are read in parallel, and each trainer reads an equal
    share of them."""
    bptt: Annotated[int, Field(ge=1, le=65_536)] = 35
    """Tokens of each stream per step. Gradients flow back through this many tokens; the hidden state is carried over
    to the next step."""
    initial_state: Literal["zero", "random"] = "zero"
    """Hidden state of the LSTM at the start. `zero`: zero at the start of each epoch; `random`: as in the PyTorch
    tutorial, drawn from the standard normal distribution at the start of the job and then carried over also from one
    epoch to the next. Evaluations and samples start from zero in both cases."""
    optimizer: Annotated[Sgd | Adam | AdamW, Field(discriminator="name")] = Adam(name="adam", lr=0.002)
    """Optimizer of all weights, local and remote: `sgd`, `adam` or `adamw`."""
    max_grad_norm: Positive | None = 1.0
    """Maximum norm of the gradients over all weights, local and remote; larger gradients are scaled down. With null,
    gradients are not clipped."""
    protocol: Annotated[Literal["sync", "tutorial"], RenamedProtocol] = "sync"
    """Update protocol. `sync`: a server applies the mean gradient of all trainers once per step, like one process with
    the whole batch; `tutorial`: the form of the PyTorch tutorial. Embedding and decoder include their dropout, every
    token is looked up, all logits are returned, and each trainer's torch DistributedOptimizer updates local and remote
    weights; all trainers start the next step together. With several trainers, `tutorial` is not reproducible."""
    loss_at: Literal["server", "trainer"] = "server"
    """Place of the loss computation. `server`: on the decoder's servers, which receive hidden states and return two
    numbers for each token; `trainer`: the servers return all logits. The result is the same. No effect with
    `protocol: tutorial`, whose loss is always at the trainer."""
    precision: Precision = "float32"
    """Data type of weights and arithmetic. `bfloat16` computes in bfloat16 where it is safe (torch.autocast) and keeps
    float32 weights; a GPU without bfloat16 support is an error. `float64` is for parity tests."""
    sample: Sample = Sample()
    """The text that the trained model generates."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse(self._problems())
        check_streams(self.text, self.batch_size)
        check_prompt(self.text, self.sample)
        return self

    def _problems(self) -> Iterator[str]:
        for name in changed(self, ("layers", "dropout") if self.model else ()):
            yield f"{name} has no effect on a custom model; omit {name} or model"
        if self.model and self.initial_state == "random":
            yield "initial_state: random is not for a custom model, which makes its own state; omit it"
        if self.protocol == "tutorial" and self.max_grad_norm is not None:
            yield "max_grad_norm does not fit protocol: tutorial, which clips no gradients; set max_grad_norm to null"
        if self.protocol == "tutorial" and self.lr_schedule != LrSchedule():
            yield "lr_schedule is not supported by protocol: tutorial; omit lr_schedule"
        if self.early_stopping and self.text.validation == 0.0:
            yield "early_stopping needs validation text; set text.validation to a share above 0, or to paths"
