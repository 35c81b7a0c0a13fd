"""What a user may say about an `rnn-lm` job. Torch-free; docstrings are the API's descriptions."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

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
)
from rolecall.kit.text.params import Sample, Text


class Params(TrainingParams):
    """The parameters of an `rnn-lm` job."""

    text: Text
    """The text and how it is cut into tokens."""
    embedding_dim: Annotated[int, Field(ge=1, le=16_384)] = 256
    """The length of a token's vector."""
    hidden_dim: Annotated[int, Field(ge=1, le=16_384)] = 256
    """The width of each LSTM layer."""
    layers: Annotated[int, Field(ge=1, le=64)] = 2
    """LSTM layers, one on the other."""
    dropout: Fraction = 0.2
    """The share of the LSTM's inputs, of the outputs of each of its layers and of the decoder's inputs that is dropped
    in training."""
    model: Builder | None = None
    """A recurrent part of the job's own, in place of `layers` and `dropout`: a function that is called with
    `embedding_dim` and `hidden_dim` and gives a torch module. The module is called with vectors [t, b, embedding_dim]
    and a state, and gives hidden states [t, b, hidden_dim] and the state after them; a state is a tuple of tensors, or
    None where the text begins."""
    init_range: Positive = 0.1
    """The first weights of embedding and decoder are drawn evenly between minus this and this."""
    batch_size: BatchSize = 32
    """Streams of text that are read side by side, over all trainers together; each takes its equal share. The text is
    cut into so many equal parts."""
    bptt: Annotated[int, Field(ge=1, le=65_536)] = 35
    """Tokens of each stream per step. Gradients go back through so many; the hidden state is carried on."""
    optimizer: Annotated[Sgd | Adam | AdamW, Field(discriminator="name")] = Adam(name="adam", lr=0.002)
    """The optimizer of all weights, local and remote: `sgd`, `adam` or `adamw`."""
    max_grad_norm: Positive | None = 1.0
    """Gradients are scaled down so that their norm over all weights together, local and remote, is at most this; with
    null they are left alone."""
    protocol: Annotated[Literal["sync", "tutorial"], RenamedProtocol] = "sync"
    """`sync`: a server applies the mean gradient of all trainers once per step, as one process would with the whole
    batch; `tutorial`: each trainer's torch DistributedOptimizer steps the remote weights, as in the tutorial, and all
    trainers begin the next step together. With several trainers it is not reproducible."""
    loss_at: Literal["server", "trainer"] = "server"
    """Where the loss is computed. `server`: beside the decoder, so that hidden states cross the wire and two numbers
    for each token come back; `trainer`: all logits come back, as in the tutorial. The result is the same."""
    precision: Precision = "float32"
    """The type of weights and arithmetic. `bfloat16` computes in it where that is safe (torch.autocast) and keeps
    float32 weights; a GPU that has none is an error. `float64` is for proofs of parity."""
    sample: Sample = Sample()
    """The text that the trained model writes."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.model and (self.layers, self.dropout) != (2, 0.2):
            raise ValueError("layers and dropout shape the LSTM that model replaces; give either those or model")
        if self.protocol == "tutorial" and self.max_grad_norm is not None:
            raise ValueError("protocol: tutorial does not clip gradients; set max_grad_norm to null")
        if self.protocol == "tutorial" and self.lr_schedule != LrSchedule():
            raise ValueError("protocol: tutorial keeps its learning rates constant; leave lr_schedule out")
        if self.early_stopping and self.text.validation == 0.0:
            raise ValueError(
                "early_stopping needs validation text; set text.validation to a share above 0, or to paths"
            )
        return self
