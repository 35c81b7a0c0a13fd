"""Parameters of `transformer-pipeline` jobs. Torch-free; docstrings are the API's descriptions."""

from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from rolecall import kit
from rolecall.kit import InputError, counted, refuse
from rolecall.kit.builders import Builder
from rolecall.kit.csv_schedules import CsvSchedule
from rolecall.kit.divisors import divisors, nearest
from rolecall.kit.own_schedule import OwnSchedule
from rolecall.kit.params import (
    Adam,
    AdamW,
    BatchSize,
    Fraction,
    LrSchedule,
    Name,
    Positive,
    Precision,
    Replicas,
    Sgd,
    TrainingParams,
    Width,
    changed,
    to_object,
)
from rolecall.kit.pipelining import Side, cut_indices
from rolecall.kit.schedules import MAX_MICRO_BATCHES, SCHEDULES, Schedule, ScheduleName
from rolecall.kit.text.params import Sample, Text, check_prompt, check_sequences

SplitMethod = Literal["manual", "tracer"]


def block_names(layers: int) -> tuple[str, ...]:
    """The blocks between which the decoder can be cut, in order."""
    return ("embedding", *(f"layers.{index}" for index in range(layers)), "head")


class CutPoint(kit.Params):
    """A cut between two stages, next to a block of the model."""

    layer: Name
    """Name of the block: `embedding`, `layers.0`, `layers.1`, …, `head`, or a block of a custom whole model."""
    at: Side = "beginning"
    """`beginning`: the block is the first one of a stage; `end`: it is the last one. With `split: tracer`, these are
    torch's `SplitPoint.BEGINNING` and `SplitPoint.END`."""


class Model(Builder):
    """A function that builds custom layers, or a custom whole model."""

    builds: Literal["layer", "model"] = "layer"
    """The result of the function. `layer`: called with `dim` and `context` for each layer, it returns a causal torch
    module from vectors [b, t, dim] to the same shape. `model`: called with the size of the vocabulary and `context`, it
    returns a torch module from tokens [b, t] to logits [b, t, vocabulary], which is cut between its children."""


class Subwords(Text):
    """A job's text, by default with byte-pair tokens."""

    tokens: Literal["word", "character", "bpe"] = "bpe"
    """Type of the tokens. `bpe`: byte-level byte-pair encoding, which can represent every text; `word`: words,
    punctuation marks and line ends; `character`: single characters."""
    vocabulary: Annotated[int, Field(ge=2, le=1_000_000)] = 4096
    """Maximum size of the vocabulary. It contains the most frequent tokens, and with `word` and `character` a token
    `<unk>` for all others."""


class Params(TrainingParams):
    """The parameters of a `transformer-pipeline` job."""

    text: Subwords
    """The text and its tokenization."""
    context: Annotated[int, Field(ge=2, le=131_072)] = 256
    """Sequence length in tokens. The text is packed into sequences of this length without gaps or padding."""
    layers: Annotated[int, Field(ge=1, le=1024)] = 8
    """Total number of transformer layers."""
    dim: Annotated[int, Field(ge=1, le=65_536)] = 256
    """Dimension of the token embeddings."""
    heads: Annotated[int, Field(ge=1, le=1024)] = 8
    """Number of attention heads; must divide `dim`."""
    hidden: Width | None = None
    """Width of each layer's feed-forward network; by default 4 times `dim`."""
    positions: Literal["rope", "learned"] = "rope"
    """Position encoding: `rope` rotates queries and keys in every layer, `learned` adds a learned vector for each
    position to the embedding."""
    dropout: Fraction = 0.0
    """Dropout rate of the embedding, of each layer's outputs and of its attention weights."""
    model: Model | None = None
    """A custom model. Custom layers replace `heads`, `hidden` and rotary positions; a custom whole model replaces
    `layers`, `dim`, `positions` and `dropout` too. The modules initialize their own weights, and have no buffers that
    must be saved."""
    tied_embeddings: bool = False
    """Must be false: the input and the output matrix are on different stages, and stages share no weights."""
    batch_size: BatchSize = 32
    """Sequences per step over all replicas. An incomplete last batch of an epoch is dropped, because stages need fixed
    shapes."""
    schedule: ScheduleName | OwnSchedule = "1F1B"
    """Pipeline schedule: the order in which micro-batches pass through the stages. The name of one of torch's
    schedules, or a custom schedule, such as `{"csv": "/data/own.csv"}`. `rolecall schedule` draws both."""
    split: SplitMethod = "manual"
    """Split method. `manual`: each rank builds its own layers; `tracer`: each rank traces the whole model and
    torch splits the trace."""
    cuts: (
        Annotated[
            tuple[
                Annotated[CutPoint, BeforeValidator(to_object("layer"), json_schema_input_type=Name | CutPoint)], ...
            ],
            Field(max_length=1024),
        ]
        | Literal["pipe_split"]
        | None
    ) = None
    """Cuts between the virtual stages, in the model's order: the name of the first block of each stage after the first,
    such as `["layers.4"]` for two stages, or `{"layer": "layers.3", "at": "end"}` for the last block of a stage. By
    default, the cuts balance the stages by their numbers of weights. `pipe_split`: where the `forward` of a custom
    whole model calls torch's `pipe_split()`; requires `split: tracer`."""
    micro_batches: Annotated[int, Field(ge=1, le=MAX_MICRO_BATCHES)] = 4
    """Number of micro-batches into which a replica splits its share of a batch; more micro-batches reduce idle time."""
    virtual_stages: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Number of model parts on each rank; by default the minimum for the schedule: 1 or 2."""
    replicas: Replicas = 1
    """Number of copies of the whole pipeline. The number of stages of a job is pipeline ranks times replicas."""
    precision: Precision = "float32"
    """Data type of weights and arithmetic. `bfloat16` computes in bfloat16 where it is safe (torch.autocast) and keeps
    float32 weights; a GPU without bfloat16 support is an error. `float64` is for parity tests."""
    activation_checkpointing: bool = False
    """Recompute each layer's inner activations in the backward pass instead of storing them."""
    max_grad_norm: Positive | None = 1.0
    """Maximum norm of the gradients over all stages; larger gradients are scaled down. With null, gradients are not
    clipped."""
    optimizer: Annotated[Sgd | Adam | AdamW, Field(discriminator="name")] = AdamW(
        name="adamw", betas=(0.9, 0.95), weight_decay=0.1
    )
    """Optimizer: `sgd`, `adam` or `adamw`. Weight decay excludes norms and biases."""
    lr_schedule: LrSchedule = LrSchedule(shape="cosine", warmup_steps=50)
    """Schedule of the learning rate over the job's steps."""
    sample: Sample = Sample()
    """The text that the trained model generates."""

    @property
    def rules(self) -> Schedule | None:
        """The limits of the schedule; None for an own one, which has no others than its tasks."""
        return None if isinstance(self.schedule, OwnSchedule) else SCHEDULES[self.schedule]

    @property
    def stages_per_rank(self) -> int:
        if self.rules is not None:
            return self.virtual_stages or self.rules.default_virtual_stages
        return self.virtual_stages or (self.own_schedule.virtual_stages if self.own_schedule else 1)

    @cached_property
    def own_schedule(self) -> CsvSchedule | None:
        """The own schedule of a job that brings its rows; a file can be read only on a node."""
        is_known = isinstance(self.schedule, OwnSchedule) and self.schedule.rows is not None
        return self.schedule.load() if is_known else None  # type: ignore[union-attr]

    @property
    def whole_model(self) -> Model | None:
        """The builder of a custom whole model, if the job has one."""
        return self.model if self.model and self.model.builds == "model" else None

    @property
    def named_cuts(self) -> tuple[CutPoint, ...] | None:
        """The cuts that name blocks; None if they are balanced, or marked in the model's code."""
        return None if self.cuts == "pipe_split" else self.cuts

    @property
    def cut_points(self) -> list[tuple[str, Side]]:
        return [(cut.layer, cut.at) for cut in self.named_cuts or ()]

    @property
    def replica_batch(self) -> int:
        return self.batch_size // self.replicas

    @property
    def micro_batch(self) -> int:
        return self.replica_batch // self.micro_batches

    @model_validator(mode="after")
    def _untied(self) -> Self:
        if self.tied_embeddings:
            raise ValueError(
                "tied_embeddings must be false: the input matrix is on the first stage and the output matrix on the "
                "last, and torch's pipelines don't share weights between stages"
            )
        return self

    @model_validator(mode="after")
    def _valid_model(self) -> Self:
        if self.model is not None:
            self._check_own_model()
        elif self.dim % self.heads:
            raise ValueError(
                f"heads {self.heads} does not divide dim {self.dim}; "
                f"nearest valid: {nearest(divisors(self.dim), self.heads)}"
            )
        elif self.positions == "rope" and self.dim // self.heads % 2:
            raise ValueError(
                f"positions: rope rotates pairs of features, but a head has {self.dim // self.heads}; "
                "use an even dim / heads, or positions: learned"
            )
        return self

    def _check_own_model(self) -> None:
        names = ("heads", "hidden")
        if self.whole_model:
            names += ("layers", "dim", "positions", "dropout", "activation_checkpointing")
        kind = "a custom whole model" if self.whole_model else "custom layers"
        refuse(f"{name} has no effect on {kind}; omit {name} or model" for name in changed(self, names))

    @model_validator(mode="after")
    def _valid_cuts(self) -> Self:
        """The blocks of a custom whole model are known when it is built."""
        if self.cuts == "pipe_split" and not (self.whole_model and self.split == "tracer"):
            raise ValueError(
                "cuts: pipe_split are the calls in the code of a custom whole model, which torch's tracer finds; "
                "set model and split: tracer, or name blocks"
            )
        if self.named_cuts is None or self.whole_model:
            return self
        try:
            cut_indices(self.cut_points, block_names(self.layers))
        except InputError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _valid_schedule(self) -> Self:
        if (rules := self.rules) is not None:
            self._check_rules(rules)
        elif self.own_schedule is not None:
            try:
                self.check_own_schedule(self.own_schedule)
            except InputError as error:
                raise ValueError(str(error)) from error
        return self

    def _check_rules(self, rules: Schedule) -> None:
        minimum, maximum = rules.virtual_stages
        if not minimum <= self.stages_per_rank <= maximum:
            raise ValueError(
                f"virtual_stages is {self.virtual_stages}; schedule {rules.name} requires {rules.virtual_stages_text}"
            )
        if self.activation_checkpointing and not rules.checkpointing:
            supported = [name for name, schedule in SCHEDULES.items() if schedule.checkpointing]
            raise ValueError(
                f"schedule {rules.name} splits the backward pass, so activation_checkpointing would recompute each "
                f"layer many times; schedules that support it: {', '.join(supported)}"
            )

    def check_own_schedule(self, own: CsvSchedule) -> None:
        """Raises `InputError` if the other parameters don't fit an own schedule."""
        if self.stages_per_rank != own.virtual_stages:
            raise InputError(
                f"virtual_stages is {self.stages_per_rank}, but the schedule has "
                f"{counted(own.virtual_stages, 'virtual stage')} on each rank; set it to {own.virtual_stages}"
            )
        if self.micro_batches != own.micro_batches:
            raise InputError(
                f"micro_batches is {self.micro_batches}, but the schedule has "
                f"{counted(own.micro_batches, 'micro-batch')}; set it to {own.micro_batches}"
            )
        if self.activation_checkpointing and own.splits_backward:
            raise InputError(
                "activation_checkpointing would recompute each layer many times, because the schedule splits backward "
                "passes; use full backward passes (B), or activation_checkpointing: false"
            )

    @model_validator(mode="after")
    def _valid_tracing(self) -> Self:
        """A trace contains only the operations of training, each of them once."""
        if self.split == "tracer" and self.dropout > 0:
            raise ValueError(
                "dropout can't be disabled for evaluation and samples with split: tracer; use split: manual, or "
                "dropout: 0"
            )
        if self.split == "tracer" and self.activation_checkpointing:
            raise ValueError(
                "activation_checkpointing needs layers, which split: tracer does not have; use split: manual"
            )
        return self

    @model_validator(mode="after")
    def _valid_batch(self) -> Self:
        if self.batch_size % self.replicas:
            raise ValueError(
                f"batch_size {self.batch_size} is not divisible by {self.replicas} replicas; "
                f"nearest valid: {nearest(divisors(self.batch_size), self.replicas)}"
            )
        if self.replica_batch % self.micro_batches:
            raise ValueError(
                f"micro_batches {self.micro_batches} does not divide the {self.replica_batch} sequences of each "
                f"replica; nearest valid: {nearest(divisors(self.replica_batch), self.micro_batches)}"
            )
        return self

    @model_validator(mode="after")
    def _valid_text(self) -> Self:
        check_sequences(self.text, self.batch_size, self.context)
        check_prompt(self.text, self.sample)
        if self.early_stopping and self.text.validation == 0.0:
            raise ValueError(
                "early_stopping needs validation text; set text.validation to a share above 0, or to paths"
            )
        return self
