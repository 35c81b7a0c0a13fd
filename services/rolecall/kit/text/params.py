"""Parameters of a job's text. Torch-free; docstrings are the API's descriptions."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from rolecall.kit.params import Fraction, Paths, Positive, changed
from rolecall.spec import workload
from rolecall.spec.workload import refuse

BYTES = 256
"""Byte-pair encoding starts with a token for each byte, so that no token is unknown."""
NO_PROMPT = "\n"
"""The default prompt, which starts a new text."""


class SyntheticText(workload.Params):
    """Random tokens, for smoke tests, lessons and benchmarks. They depend only on these parameters and are displayed as
    the numbers from 0 to `vocabulary` - 1, separated by spaces."""

    tokens: Annotated[int, Field(ge=2, le=2**30)]
    """Number of tokens of the training text, including the share that `text.validation` takes from its end."""
    vocabulary: Annotated[int, Field(ge=2, le=1_000_000)] = 10_000
    """Number of different tokens."""
    source: Literal["uniform", "markov"] = "uniform"
    """Source of the tokens. `uniform`: independent and equally likely, as in the PyTorch tutorials, so that there is
    nothing to learn: the best perplexity is `vocabulary`; `markov`: after token n follows one of n + 1 to n + 4 (modulo
    `vocabulary`), equally likely, so that the best perplexity is 4."""
    targets: Literal["next", "random"] = "next"
    """The target of each token. `next`: the next token, as in a text; `random`: a random token that is unrelated to the
    text, as in the PyTorch tutorials, so that there is nothing to learn."""
    test: Annotated[int, Field(ge=0, le=2**30)] = 0
    """Number of tokens of the test text; 0 for none."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the tokens; independent of the seed of the job."""


class Text(workload.Params):
    """A job's text and its tokenization: files or synthetic text."""

    train: Paths | None = None
    """Training text: a path, glob or fsspec URL, or a list of them; UTF-8, also as `.gz`. The vocabulary is learned
    from this text only. Required without `synthetic`."""
    synthetic: SyntheticText | None = None
    """Random tokens instead of files. Excludes `train`, `test`, `tokens`, `vocabulary`, `lowercase` and paths in
    `validation`."""
    validation: Annotated[Fraction | Paths, Field(union_mode="left_to_right")] = 0.05
    """Validation text, scored after each epoch: a share taken from the end of the training text, split at a line end
    (synthetic text: at any token), or paths in the same form as `train`."""
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
    def _one_source(self) -> Self:
        if self.synthetic is None:
            if self.train is None:
                raise ValueError("train is missing; set train to paths, or synthetic to random tokens")
            return self
        replaced = [*changed(self, _OF_FILES), *(["validation"] if isinstance(self.validation, list) else [])]
        remedies = {"vocabulary": "set synthetic.vocabulary", "test": "set synthetic.test", "validation": "set a share"}
        refuse(f"{name} is not for synthetic text; {remedies.get(name, 'omit it')}" for name in replaced)
        for split, tokens in self.synthetic_tokens.items():
            if not tokens:
                raise ValueError(
                    f"validation {self.validation} of {self.synthetic.tokens} synthetic tokens leaves no {split} text; "
                    "set more synthetic.tokens, or validation to 0"
                )
        return self

    @model_validator(mode="after")
    def _enough_for_bytes(self) -> Self:
        if self.tokens == "bpe" and self.vocabulary < BYTES:
            raise ValueError(f"vocabulary is {self.vocabulary}; with tokens: bpe it must be at least {BYTES}")
        return self

    @property
    def sources(self) -> dict[str, list[str]]:
        """The paths of each split that has its own files."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: paths for split, paths in given.items() if isinstance(paths, list)}

    @property
    def synthetic_tokens(self) -> dict[str, int]:
        """The number of tokens of each split of a synthetic text; empty for files."""
        if self.synthetic is None:
            return {}
        train = self.synthetic.tokens
        share = self.validation if isinstance(self.validation, float) else 0.0
        held_out = round(train * share)
        splits = {"train": train - held_out}
        splits |= {"validation": held_out} if share > 0 else {}
        return splits | ({"test": self.synthetic.test} if self.synthetic.test else {})


_PLACES = {"train": "text.synthetic.tokens", "validation": "text.validation", "test": "text.synthetic.test"}
"""The parameters with the length of each split of a synthetic text."""
_OF_FILES = ("train", "test", "tokens", "vocabulary", "lowercase")


def _has_tokens(prompt: str) -> str:
    if not prompt.strip() and "\n" not in prompt:
        raise ValueError("a blank prompt has no tokens; write some text, or a line break to start a new text")
    return prompt


class Sample(workload.Params):
    """The text that the trained model generates, the artifact `sample.txt`."""

    prompt: Annotated[str, Field(max_length=65_536), AfterValidator(_has_tokens)] = NO_PROMPT
    """Beginning of the text; a line end starts a new text. With synthetic text: numbers separated by spaces; a line end
    stands for the first token of the training text."""
    tokens: Annotated[int, Field(ge=0, le=100_000)] = 200
    """Number of tokens to generate; 0 for no sample."""
    temperature: Positive = 0.8
    """Sampling temperature, by which the logits are divided: below 1, likely tokens become more likely; above 1, less
    likely."""


def check_prompt(text: Text, sample: Sample) -> None:
    """Raises `ValueError` for a prompt that is not made of the synthetic text's tokens."""
    if text.synthetic is None or sample.prompt == NO_PROMPT:
        return
    known = text.synthetic.vocabulary
    for word in sample.prompt.split():
        # At most 7 digits: int() of a long text takes quadratic time.
        if not (
            len(word) <= 7 and word.isascii() and word.isdecimal() and str(int(word)) == word and int(word) < known
        ):
            raise ValueError(
                f"sample.prompt has {word[:20]!r}, which is not a token of the synthetic text; "
                f"use numbers from 0 to {known - 1}, separated by spaces"
            )


def check_streams(text: Text, count: int) -> None:
    """Raises `ValueError` for a split of a synthetic text that is too short for `count` streams."""
    for split, tokens in text.synthetic_tokens.items():
        if tokens <= count:
            raise ValueError(
                f"{_PLACES[split]}: the synthetic {split} text has {tokens} tokens, too few for {count} streams; "
                f"lower batch_size below {tokens}, or set more tokens"
            )


def check_sequences(text: Text, batch_size: int, context: int) -> None:
    """Raises `ValueError` if a synthetic training text has no full batch of sequences, or another split no sequence."""
    for split, tokens in text.synthetic_tokens.items():
        sequences, what, lower = (1, "a score", "") if split != "train" else (batch_size, "a step", "batch_size or ")
        needed = sequences * context + 1
        if tokens < needed:
            raise ValueError(
                f"{_PLACES[split]}: the synthetic {split} text has {tokens} tokens, but {what} needs {needed} "
                f"(sequences of {context}: {sequences}); set more tokens, or lower {lower}context"
            )
