"""Trains word, character and BPE tokenizers of the `tokenizers` library, whose JSON is self-contained."""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from rolecall.kit.text.params import Text

UNKNOWN = "<unk>"
# Words (with inner apostrophes), line ends, and single punctuation characters; spaces separate them and are dropped.
_WORDS = r"[^\W_]+(?:['’][^\W_]+)*|\n|[^\w\s]|_"
# Superfluous spaces of joined words: before closing punctuation, after opening punctuation and line ends, at dashes.
_EXTRA_SPACES = (r" (?=[.,;:!?)\]”’\n—-])", r"(?<=[\n(\[“‘—-]) ")


def train_tokenizer(text: Text, lines: Iterable[str]) -> Tokenizer:
    """A tokenizer for `text`, trained on the training lines."""
    tokenizer = _UNTRAINED[text.tokens]()
    if text.lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.train_from_iterator(lines, _trainer(text))
    return tokenizer


def _words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "removed", invert=True)
    # The WordPiece decoder joins with spaces. No token starts with its prefix, because "#" is always a single token.
    joined = [decoders.WordPiece(prefix="##", cleanup=False), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*joined, *(decoders.Replace(Regex(pattern), "") for pattern in _EXTRA_SPACES)]
    )
    return tokenizer


def _characters() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _byte_pairs() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


_UNTRAINED = {"word": _words, "character": _characters, "bpe": _byte_pairs}


def _trainer(text: Text) -> trainers.Trainer:
    if text.tokens == "bpe":
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        return trainers.BpeTrainer(vocab_size=text.vocabulary, initial_alphabet=alphabet, show_progress=False)
    return trainers.WordLevelTrainer(vocab_size=text.vocabulary, special_tokens=[UNKNOWN], show_progress=False)
