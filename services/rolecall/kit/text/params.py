"""Parameters of a job's text. Torch-free; docstrings are the API's descriptions."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from rolecall.kit.params import Fraction, Paths, Positive
from rolecall.spec import workload

BYTES = 256
"""Byte-pair encoding starts with a token for each byte, so that no token is unknown."""


class Text(workload.Params):
    """A job's text and its tokenization."""

    train: Paths
    """Training text: a path, glob or fsspec URL, or a list of them; UTF-8, also as `.gz`. The vocabulary is learned
    from this text only."""
    validation: Annotated[Fraction | Paths, Field(union_mode="left_to_right")] = 0.05
    """Validation text, scored after each epoch: a share taken from the end of the training text, split at a line end,
    or paths in the same form as `train`."""
    test: Paths | None = None
    """Test text for the final score, in the same form as `train`."""
    tokens: Literal["word", "character", "bpe"] = "word"
    """Type of the tokens. `word`: words, punctuation marks and line ends; `character`: single characters; `bpe`:
    byte-level byte-pair encoding, which can represent every text."""
    vocabulary: Annotated[int, Field(ge=2, le=1_000_000)] = 10_000
    """Maximum size of the vocabulary. It contains the most frequent tokens, and with `word` and `character` a token
    `<unk>` for all others."""
    lowercase: bool = False
    """Convert the text to lower case."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tokens == "bpe" and self.vocabulary < BYTES:
            raise ValueError(f"vocabulary is {self.vocabulary}; with tokens: bpe it must be at least {BYTES}")
        return self

    @property
    def sources(self) -> dict[str, list[str]]:
        """The paths of each split that has its own files."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: paths for split, paths in given.items() if isinstance(paths, list)}


def _has_tokens(prompt: str) -> str:
    if not prompt.strip() and "\n" not in prompt:
        raise ValueError("a blank prompt has no tokens; write some text, or a line break to start a new text")
    return prompt


class Sample(workload.Params):
    """The text that the trained model generates, the artifact `sample.txt`."""

    prompt: Annotated[str, Field(max_length=65_536), AfterValidator(_has_tokens)] = "\n"
    """Beginning of the text; a line end starts a new text."""
    tokens: Annotated[int, Field(ge=0, le=100_000)] = 200
    """Number of tokens to generate; 0 for no sample."""
    temperature: Positive = 0.8
    """Sampling temperature, by which the logits are divided: below 1, likely tokens become more likely; above 1, less
    likely."""
