"""What a user may say about a job's text. Torch-free; docstrings are the API's descriptions."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from rolecall.kit.params import Fraction, Paths, Positive
from rolecall.spec import workload

BYTES = 256
"""Byte-pair encoding starts with a token for each byte, so that there is no unknown one."""


class Text(workload.Params):
    """A job's text and how it is cut into tokens."""

    train: Paths
    """The training text: a path, glob or fsspec URL, or a list of them; UTF-8, also as `.gz`. The vocabulary is learnt
    from it alone."""
    validation: Annotated[Fraction | Paths, Field(union_mode="left_to_right")] = 0.05
    """The text for the score of each epoch: a share of the training text, cut off its end at a line's end, or paths as
    `train`."""
    test: Paths | None = None
    """Text for the final score, as `train`."""
    tokens: Literal["word", "character", "bpe"] = "word"
    """`word`: words, punctuation marks and line ends; `character`: single characters; `bpe`: byte-level byte-pair
    encoding, in which every text can be written."""
    vocabulary: Annotated[int, Field(ge=2, le=1_000_000)] = 10_000
    """The most tokens that are told apart: the most frequent ones, and with `word` and `character` a token `<unk>` for
    all others."""
    lowercase: bool = False
    """Whether upper and lower case are the same."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tokens == "bpe" and self.vocabulary < BYTES:
            raise ValueError(f"vocabulary is {self.vocabulary}; with tokens: bpe it must be {BYTES} or more")
        return self

    @property
    def sources(self) -> dict[str, list[str]]:
        """The paths of each split that has its own."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: paths for split, paths in given.items() if isinstance(paths, list)}


def _has_tokens(prompt: str) -> str:
    if not prompt.strip() and "\n" not in prompt:
        raise ValueError("a prompt of blanks has no tokens; write some text, or a line end for a fresh start")
    return prompt


class Sample(workload.Params):
    """The text that the trained model writes, the artifact `sample.txt`."""

    prompt: Annotated[str, Field(max_length=65_536), AfterValidator(_has_tokens)] = "\n"
    """How it begins; a line end stands for a fresh start."""
    tokens: Annotated[int, Field(ge=0, le=100_000)] = 200
    """How many tokens are added; with 0 there is no sample."""
    temperature: Positive = 0.8
    """What the logits are divided by: below 1 likely tokens become likelier, above 1 less likely."""
