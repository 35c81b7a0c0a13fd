# pyright: standard
"""Terms that names in the code, and texts for users, operators and maintainers, must not contain, each with its
replacement.

The first test checks the documents without their code, the comments of the files that operators edit, the texts of the
dashboards and pages, the string literals, docstrings and comments in `services` and `benchmarks`, the docstrings,
comments and names in `tests`, whose other literals can be samples, and the API's description.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from rolecall.master.catalogue import Catalogue
from rolecall.master.program import Program
from rolecall.master.server import create_app
from rolecall.settings.master import MasterSettings

ROOT = Path(__file__).parent.parent
SERVICES = ROOT / "services/rolecall"

GLOSSARY = {
    r"(to|can|could) be had|had again": "available",
    r"parted by|what parts": "separated by, separator",
    r"(goes|go|going|went) well|(all|is|are) well": "succeeds, recovers, no problems",
    r"told of|(is|are|was|were) told": "informed about, gets",
    r"so many(?! \w+ that| that)": "this many, N",
    r"stands? with": "the state of",
    r"beside": "next to, in addition to",
    r"trouble": "error, failure",
    r"knock(s|ed|ing)?": "probe",
    r"the house's own": "built-in",
    r"merit": "objective",
    r"turned round": "negated",
    r"lets? go of": "releases",
    r"for ever": "indefinitely",
    r"(is|are) wanting": "missing",
    r"anew": "again",
    r"mend(s|ed|ing)?": "fix",
    r"in place of": "instead of",
    r"(goes|go|going|went) on(?= (until|without|from|with|after|elsewhere|while)\b|[.,;:)]|$)": "continues",
    r"(cross|crosses|crossing) the wire": "is sent",
    r"again and again": "retries",
    r"living (nodes?|workers?|masters?)": "live",
    r"(is|are|was|were) away": "unavailable",
    r"(un)?heard|hears": "last heartbeat",
    r"somebody": "a user, another program",
    r"left-overs": "remaining files",
    r"in all(?=[.,;:)]|$)": "in total",
    r"bears? (a|an|the|its|this|no)": "has",
    r"heeds?": "uses",
    r"senseless": "invalid",
    r"strangers?": "unknown client",
    r"cured?": "fixed",
    r"seldom": "rarely",
    r"ways? (to|between|from) (the |a |its |all |any |two )*(master|nodes?|others|service)": "route, connection",
    r"proofs? of|proved": "test, verified",
    r"behind a checkpoint": "after a checkpoint",
    r"of its own accord": "automatically",
    r"gets? the better of|in each other's way": "conflict",
    r"what (is|was) (given|found|said)": "the value, the finding, the message",
    r"(earlier|former|previous) li(fe|ves)": "incarnation",
    r"looks? around|measures? (itself|themselves) against": "self-check, compares",
    r"from now on it counts|at once nobody's": "becomes valid, expires immediately",
    r"set-ups?": "setup, configuration",
    r"quorums?": "majority, step barrier",
    r"surroundings": "environment, cluster information",
    r"everywhere": "on every node",
    r"pieces?": "chunk",
    r"scenes?": "snapshot",
    r"judg(e|es|ed|ing)": "classify",
    r"s(ee|ees|aw|een|eeing) off": "drain before the exit",
    r"e\.g\.|i\.e\.": "for example, that is",
    r"learnt|misspelt|\w*(neighbour|behaviour|colour|favour)\w*|labelled|licences?": "the American spelling",
    r"\w+(alis|onis|aris|imis)(e|ed|es|ing|ation)": "the American spelling, -ize",
}
# One pass over all texts takes an eighth of the time of a pass for each pattern.
OUT = re.compile(rf"(?<![\w-])(?:{'|'.join(GLOSSARY)})(?![\w-])", re.IGNORECASE)

NAMES = {
    "anew": "again",
    "beside": "next to, in addition to, outside",
    "card cards": "gpu",
    "complain complains complaint complaints": "warning, error",
    "cure cures cured": "fix, remedy",
    "everywhere": "per_node",
    "hear hears heard": "received, heartbeat",
    "hurry hurried": "force_exit",
    "knock knocks knocked": "probe",
    "lives living": "incarnation, run, live",
    "mend mends mended": "fix, repair",
    "merit": "objective",
    "parted": "separated",
    "perceptron perceptrons": "mlp",
    "piece pieces": "chunk",
    "quorum": "step_barrier, majority",
    "scene scenes": "snapshot",
    "seldom": "rarely",
    "somebody": "another",
    "standing": "health, state",
    "stranger strangers": "remote, unknown, intruder",
    "surroundings": "cluster_info, environment",
    "trouble troubles": "storage_error, failure",
}
"""The words that are no part of a name in the code, nor of the name of a test, which is a sentence."""
NAMES_OF_VALUES = {
    "explore explores explorer": "probe",
    "judge judges judged": "classify",
    "told": "should_exit, notified, found",
    "way ways": "link, route, direction",
}
"""The same for other names than those of tests."""
OUT_OF_TESTS = {word: term for words, term in NAMES.items() for word in words.split()}
OUT_OF_NAMES = {word: term for words, term in NAMES_OF_VALUES.items() for word in words.split()} | OUT_OF_TESTS
KEPT_NAMES = {"perceptron", "perceptron_norm", "WordPiece"}
"""Keys of stored checkpoints and exports, and an algorithm."""

QUESTION = re.compile(r"(What|How|Who|Whose|Which|Where|When|Why|Whether)\b")
QUOTED_QUESTION = re.compile(rf"[\"']\s*{QUESTION.pattern}")

_CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`|`[^`]+`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"^\s*# (.*)$|\s# (.*)$", re.MULTILINE)


def _documents() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))):
        yield path.name, _CODE.sub("`", path.read_text())


def _operators_files() -> Iterator[tuple[str, str]]:
    files = [*ROOT.glob("compose*.yaml"), *ROOT.glob("docker/*"), *ROOT.glob("monitoring/*.yml")]
    for path in sorted([*files, *ROOT.glob("k8s/**/*.yaml")]):
        comments = _COMMENT.findall(path.read_text())
        yield str(path.relative_to(ROOT)), " ".join(full or trailing for full, trailing in comments)
    for path in sorted(ROOT.glob("monitoring/dashboards/*.json")):
        board = json.loads(path.read_text())
        texts = (one.get(key, "") for one in (board, *board["panels"]) for key in ("title", "description"))
        yield str(path.relative_to(ROOT)), "\n".join(texts)


def _literals(source: str) -> Iterator[str]:
    """The docstrings, and the literals of several words, because single words can be identifiers."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = re.sub(r"`[^`]*`", "`", " ".join(node.value.split()))
            if " " in text:
                yield text


def _docstrings_and_names(body: Iterable[ast.AST]) -> Iterator[str]:
    """The docstrings, and the names of functions and classes as texts; the name of a test is a sentence.

    Expressions have none of them. Without those, this takes a third of the time of `ast.walk`.
    """
    for node in body:
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield re.sub(r"`[^`]*`", "`", " ".join(text.split()))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name.replace("_", " ")
            case _:
                pass
        for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _docstrings_and_names(getattr(node, inner, []))


def _tests() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        source = path.read_text()
        comments = (full or trailing for full, trailing in _COMMENT.findall(source))
        texts = (*_docstrings_and_names(ast.parse(source).body), *comments)
        yield str(path.relative_to(ROOT)), "\n".join(texts)


def _sources() -> Iterator[tuple[str, str]]:
    for path in sorted([*SERVICES.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]):
        source = path.read_text()
        comments = (full or trailing for full, trailing in _COMMENT.findall(source))
        yield str(path.relative_to(ROOT)), "\n".join([*_literals(source), *comments])


def _pages() -> Iterator[tuple[str, str]]:
    for path in sorted([*SERVICES.glob("master/web/templates/**/*.html"), *SERVICES.glob("master/web/static/*.js")]):
        yield str(path.relative_to(ROOT)), path.read_text()


def _api_texts() -> Iterator[tuple[str, str]]:
    """The summaries and descriptions of the OpenAPI document.

    They come from docstrings of routes, classes and fields all over the code. The document has exactly those that
    users see at `/docs`, wherever they are defined.
    """
    settings = MasterSettings(token=SecretStr("0123456789abcdef"), node_token=SecretStr("fedcba9876543210"))
    app = create_app(Program(settings, Catalogue({})))
    waiting: list[tuple[str, Any]] = [("openapi", app.openapi())]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, list):
            value = dict(enumerate(value))
        if isinstance(value, dict):
            waiting += [(f"{place} {key}", inner) for key, inner in value.items()]
        elif isinstance(value, str) and place.endswith((" summary", " description")):
            yield place, _CODE.sub("`", value)


@cache
def _texts() -> tuple[tuple[str, str], ...]:
    return (*_documents(), *_operators_files(), *_sources(), *_tests(), *_pages(), *_api_texts())


def test_what_people_read_has_no_word_that_is_out() -> None:
    """In one test, because each process that runs a part of it would read all texts."""
    found = [
        f"{name}: …{' '.join(text[max(0, hit.start() - 40) : hit.end() + 30].split())}…; say: {_instead(hit[0])}"
        for name, text in _texts()
        for hit in OUT.finditer(text)
    ]
    assert found == []


def _instead(hit: str) -> str:
    """The replacement of the term that a text contains. Patterns that look ahead need the text after it."""
    return next(
        (term for pattern, term in GLOSSARY.items() if re.fullmatch(pattern, hit, re.IGNORECASE)), "see GLOSSARY"
    )


def test_the_texts_are_found() -> None:
    """A file that moves must not go unchecked."""
    texts = dict(_texts())
    assert "--follow" in texts["services/rolecall/cli/submit.py"]
    assert "Dropout rate" in texts["services/rolecall/workloads/rnn_lm/params.py"]
    assert "Host name or address of the master." in texts["services/rolecall/settings/node.py"]
    own = texts["tests/test_glossary.py"]
    assert "A file that moves must not go unchecked." in own
    assert "Parsing takes longer than searching" in own
    assert "test the texts are found" in own
    assert "exits" in texts["compose.yaml"]
    assert "order in which jobs are placed" in texts["services/rolecall/master/web/templates/parts/overview.html"]
    assert "Queued jobs" in texts["monitoring/dashboards/cluster.json"]
    assert "reserve" in texts["operations.md"]
    assert "```" not in texts["operations.md"]
    assert "Queue the job again" in texts["openapi paths /jobs/{job}/resume post description"]
    assert "delay the response" in texts["openapi components schemas Heartbeat properties wait_s description"]


def _code() -> list[Path]:
    folders = ("services", "tests", "examples", "benchmarks", "monitoring", "docs/images")
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def _names(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.Name(id=name):
            return (name,)
        case _:
            return ()


def _words_out(source: str, file_name: str = "") -> Iterator[str]:
    lowered, names = source.lower(), {file_name}
    # Parsing takes longer than searching, and most files have none of the words.
    if any(word in lowered for word in OUT_OF_NAMES):
        names |= {name for node in ast.walk(ast.parse(source)) for name in _names(node)} - KEPT_NAMES
    for name in names:
        out = OUT_OF_TESTS if name.startswith("test_") else OUT_OF_NAMES
        words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
        yield from (f"{name}, say: {out[word]}" for word in sorted(words & out.keys()))


def test_names_in_the_code_have_no_word_that_is_out() -> None:
    found = [f"{path.relative_to(ROOT)}: {hit}" for path in _code() for hit in _words_out(path.read_text(), path.stem)]
    assert found == []


def test_words_are_found_in_each_kind_of_name() -> None:
    source = (
        "class SceneView:\n def knock(self, trouble): self.STRANGERS = parted_by\n# surroundings\nmerits = lives_on\n"
        "def test_told(): told = mended"
    )
    assert {hit.partition(",")[0] for hit in _words_out(source, "test_everywhere")} == {
        "test_everywhere",
        "SceneView",
        "knock",
        "trouble",
        "STRANGERS",
        "parted_by",
        "lives_on",
        "told",
        "mended",
    }


def _questions(source: str) -> Iterator[str]:
    """The docstrings of modules, classes, functions and attributes that open like a question."""
    # Parsing takes longer than searching, and few files have such a string.
    for node in ast.walk(ast.parse(source)) if QUOTED_QUESTION.search(source) else ():
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if QUESTION.match(text):
                yield text.partition("\n")[0]
            case _:
                pass


def test_docstrings_do_not_open_like_a_question() -> None:
    found = [f"{path.relative_to(ROOT)}: {text}" for path in _code() for text in _questions(path.read_text())]
    assert found == [], "write a noun phrase, or a verb for what a function does"


def test_questions_are_found_in_each_kind_of_docstring() -> None:
    source = '''"""How late it is."""
class Lag:
    """What is late.

    Whose fault it is.
    """
    def whatever(self):
        """Whatever is late."""
        return "Why not"
    async def who(self):
        """Who is late."""
    late: bool
    """Whether it is late."""
    delay: float
    """Where the delay is."""
'''
    assert sorted(_questions(source)) == [
        "How late it is.",
        "What is late.",
        "Where the delay is.",
        "Whether it is late.",
        "Who is late.",
    ]
