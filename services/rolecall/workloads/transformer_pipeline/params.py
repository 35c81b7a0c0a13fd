"""What a user may say about a `transformer-pipeline` job. Torch-free; docstrings are the API's descriptions."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rolecall.kit.builders import Builder
from rolecall.kit.divisors import divisors, nearest
from rolecall.kit.params import (
    Adam,
    AdamW,
    BatchSize,
    Fraction,
    LrSchedule,
    Positive,
    Precision,
    Replicas,
    Sgd,
    TrainingParams,
    Width,
)
from rolecall.kit.text.params import Sample, Text
from rolecall.workloads.transformer_pipeline.schedules import (
    MOST_MICRO_BATCHES,
    SCHEDULES,
    Name,
    Schedule,
    Split,
    format_range,
)


class Subwords(Text):
    """A job's text, by default in byte-pair tokens."""

    tokens: Literal["word", "character", "bpe"] = "bpe"
    """`bpe`: byte-level byte-pair encoding, in which every text can be written; `word`: words, punctuation marks and
    line ends; `character`: single characters."""
    vocabulary: Annotated[int, Field(ge=2, le=1_000_000)] = 4096
    """The most tokens that are told apart: the most frequent ones, and with `word` and `character` a token `<unk>` for
    all others."""


class Params(TrainingParams):
    """The parameters of a `transformer-pipeline` job."""

    text: Subwords
    """Where the text is and what its tokens are."""
    context: Annotated[int, Field(ge=2, le=131_072)] = 256
    """Tokens of one sequence. The text is cut into sequences of this length without gaps or padding."""
    layers: Annotated[int, Field(ge=1, le=1024)] = 8
    """Transformer layers in all."""
    dim: Annotated[int, Field(ge=1, le=65_536)] = 256
    """The length of a token's vector."""
    heads: Annotated[int, Field(ge=1, le=1024)] = 8
    """Attention heads; they divide `dim`."""
    hidden: Width | None = None
    """The width of each layer's perceptron; by default 4 times `dim`."""
    positions: Literal["rope", "learned"] = "rope"
    """How a token's place enters: `rope` turns queries and keys by it in every layer, `learned` adds a vector for each
    place to the embedding."""
    dropout: Fraction = 0.0
    """The share that is dropped in training, of the embedding, of each layer's outputs and of its attention weights."""
    model: Builder | None = None
    """Layers of the job's own, in place of `heads`, `hidden` and rotary positions: a function that is called with `dim`
    and `context` for each layer and gives a torch module from vectors [b, t, dim] to the same shape, in which no token
    sees a later one. Its weights are drawn by the module itself; it has no buffers that must be saved."""
    tied_embeddings: bool = False
    """Must be false: the input and the output matrix lie on different stages, and stages share no weights."""
    batch_size: BatchSize = 32
    """Sequences per step over all replicas together. An epoch's last batch is left out if it is not full, for stages
    work on fixed shapes."""
    schedule: Name = "1F1B"
    """The order in which micro-batches pass the stages."""
    split: Split = "manual"
    """`manual`: each rank builds its own layers; `tracer`: each rank traces the whole model and torch cuts it."""
    micro_batches: Annotated[int, Field(ge=1, le=MOST_MICRO_BATCHES)] = 4
    """How many micro-batches a replica cuts its share of a batch into; more of them mean less idle time."""
    virtual_stages: Annotated[int, Field(ge=1, le=1024)] | None = None
    """How many pieces of the model each rank holds; by default as few as make sense for the schedule: 1 or 2."""
    replicas: Replicas = 1
    """How many times the whole pipeline stands; the stages that a job asks for are pipeline ranks times replicas."""
    precision: Precision = "float32"
    """The type of weights and arithmetic. `bfloat16` computes in it where that is safe (torch.autocast) and keeps
    float32 weights; a GPU that has none is an error. `float64` is for proofs of parity."""
    activation_checkpointing: bool = False
    """Whether each layer's inner activations are computed anew in the backward pass instead of kept."""
    max_grad_norm: Positive | None = 1.0
    """Gradients are scaled down so that their norm over all stages together is at most this; with null they are left
    alone."""
    optimizer: Annotated[Sgd | Adam | AdamW, Field(discriminator="name")] = AdamW(
        name="adamw", betas=(0.9, 0.95), weight_decay=0.1
    )
    """The optimizer: `sgd`, `adam` or `adamw`. Weight decay spares norms and biases."""
    lr_schedule: LrSchedule = LrSchedule(shape="cosine", warmup_steps=50)
    """How the learning rate moves over the job's steps."""
    sample: Sample = Sample()
    """The text that the trained model writes."""

    @property
    def rules(self) -> Schedule:
        """What the schedule is legal with."""
        return SCHEDULES[self.schedule]

    @property
    def stages_per_rank(self) -> int:
        """Virtual stages per pipeline rank."""
        return self.virtual_stages or self.rules.default_virtual_stages

    @property
    def replica_batch(self) -> int:
        """Sequences per step of one replica."""
        return self.batch_size // self.replicas

    @property
    def micro_batch(self) -> int:
        """Sequences of one micro-batch."""
        return self.replica_batch // self.micro_batches

    @model_validator(mode="after")
    def _untied(self) -> Self:
        if self.tied_embeddings:
            raise ValueError(
                "tied_embeddings must be false: the input matrix lies on the first stage and the output matrix on the "
                "last, and torch's pipelines don't share weights between stages"
            )
        return self

    @model_validator(mode="after")
    def _legal_heads(self) -> Self:
        if self.model is not None:
            return self
        if self.model is None and self.dim % self.heads:
            raise ValueError(
                f"heads {self.heads} don't divide dim {self.dim}; "
                f"nearest legal: {nearest(divisors(self.dim), self.heads)}"
            )
        if self.model is None and self.positions == "rope" and self.dim // self.heads % 2:
            raise ValueError(
                f"positions: rope turns pairs of features, and a head has {self.dim // self.heads}; "
                "take dim / heads even, or positions: learned"
            )
        return self

    @model_validator(mode="after")
    def _own_layers(self) -> Self:
        fields = type(self).model_fields
        replaced = [name for name in ("heads", "hidden") if getattr(self, name) != fields[name].default]
        if self.model and replaced:
            raise ValueError(f"{', '.join(replaced)} shape the layers that model replaces; leave them out")
        return self

    @model_validator(mode="after")
    def _legal_schedule(self) -> Self:
        rules = self.rules
        least, most = rules.virtual_stages
        if not least <= self.stages_per_rank <= most:
            raise ValueError(
                f"virtual_stages is {self.virtual_stages}; schedule {rules.name} takes {format_range(least, most)}"
            )
        return self

    @model_validator(mode="after")
    def _legal_checkpointing(self) -> Self:
        if self.activation_checkpointing and not self.rules.checkpointing:
            legal = [name for name, schedule in SCHEDULES.items() if schedule.checkpointing]
            raise ValueError(
                f"schedule {self.schedule} splits the backward pass, and activation_checkpointing would compute each "
                f"layer anew many times; schedules that go with it are {', '.join(legal)}"
            )
        return self

    @model_validator(mode="after")
    def _legal_tracing(self) -> Self:
        """A trace holds the operations of training alone, and each of them once."""
        if self.split == "tracer" and self.dropout > 0:
            raise ValueError("split: tracer can't turn dropout off for scores and samples; take split: manual, or 0")
        if self.split == "tracer" and self.activation_checkpointing:
            raise ValueError("split: tracer leaves no layers to checkpoint; take split: manual")
        return self

    @model_validator(mode="after")
    def _legal_batch(self) -> Self:
        if self.batch_size % self.replicas:
            raise ValueError(
                f"{self.replicas} replicas don't divide batch_size {self.batch_size}; "
                f"nearest legal: {nearest(divisors(self.batch_size), self.replicas)}"
            )
        if self.replica_batch % self.micro_batches:
            raise ValueError(
                f"micro_batches {self.micro_batches} don't divide a replica's {self.replica_batch} sequences; "
                f"nearest legal: {nearest(divisors(self.replica_batch), self.micro_batches)}"
            )
        return self

    @model_validator(mode="after")
    def _can_judge(self) -> Self:
        if self.early_stopping and self.text.validation == 0.0:
            raise ValueError(
                "early_stopping needs validation text; set text.validation to a share above 0, or to paths"
            )
        return self
