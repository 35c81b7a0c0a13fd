"""Makes and trains tokenizers; how a text is cut, and how tokens become text again.

A tokenizer is the `tokenizers` library's own, so that its JSON is all that another program needs to do the same.
"""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from rolecall.kit.text.params import Text

UNKNOWN = "<unk>"
# Words (with the apostrophes inside them), line ends, and every other sign by itself; blanks part them and are dropped.
_WORDS = r"[^\W_]+(?:['’][^\W_]+)*|\n|[^\w\s]|_"
# Where words joined by blanks have one too many: before closing signs, after opening ones and line ends, around dashes.
_EXTRA_BLANKS = (r" (?=[.,;:!?)\]”’\n—-])", r"(?<=[\n(\[“‘—-]) ")


def train_tokenizer(text: Text, lines: Iterable[str]) -> Tokenizer:
    """A tokenizer for `text` whose vocabulary is learnt from the training lines."""
    tokenizer = _BUILDERS[text.tokens]()
    if text.lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.train_from_iterator(lines, _trainer(text))
    return tokenizer


def _words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "removed", invert=True)
    # The WordPiece decoder joins by blanks; no token begins with its prefix, since signs stand alone.
    joined = [decoders.WordPiece(prefix="##", cleanup=False), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(
        [*joined, *(decoders.Replace(Regex(pattern), "") for pattern in _EXTRA_BLANKS)]
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


_BUILDERS = {"word": _words, "character": _characters, "bpe": _byte_pairs}


def _trainer(text: Text) -> trainers.Trainer:
    if text.tokens == "bpe":
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        return trainers.BpeTrainer(vocab_size=text.vocabulary, initial_alphabet=alphabet, show_progress=False)
    return trainers.WordLevelTrainer(vocab_size=text.vocabulary, special_tokens=[UNKNOWN], show_progress=False)
