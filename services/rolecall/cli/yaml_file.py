"""YAML with the values of JSON.

PyYAML follows YAML 1.1, in which `no` is false, `1e-3` is text and `2026-01-01` is a date. Here, plain values have the
meaning of YAML 1.2's core schema. Everything that JSON can't represent is an error.
"""

import math
import re
from collections.abc import Hashable
from typing import Any, ClassVar

import yaml

from rolecall.spec.errors import InputError

_PLAIN = {
    "bool": r"true|True|TRUE|false|False|FALSE",
    "null": r"~|null|Null|NULL|",
    "int": r"[-+]?[0-9]+",
    "float": r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
}
"""The texts that are not strings, in order of precedence."""


_PROBLEMS = {
    "mapping values are not allowed here": "a colon is not valid here; indent names of one level alike, and write text "
    "with a colon and a space in quotes",
    r"expected ',' or '\]'": "the list{since} needs a comma or its closing ] here",
    r"expected ',' or '\}'": "the mapping{since} needs a comma or its closing }} here",
    "found unexpected end of stream": "the text in quotes{since} has no closing quote",
    "found undefined alias '(.*)'": "*{0} is not defined; write text that begins with * in quotes",
    "found unknown escape character '(.*)'": "\\{0} is not valid in double quotes; write \\\\{0}, or use single quotes",
    r"found character '\\t'": "a tab can't indent a line; use spaces",
    "found character '(.*)' that cannot": "text can't begin with {0}; write it in quotes",
    "could not determine a constructor for the tag '(.*)'": "the tag {0} is not valid; remove it, or write text that "
    "begins with ! in quotes",
    "but found another document": "a second document begins here; write one job in each file",
    "expected <block end>": "the indentation of this line fits neither the lines above nor those around them",
    "could not find expected ':'": "the line{since} has no colon; write NAME: VALUE",
    "expected the node content, but found '<stream end>'": "it ends too early; add what is missing",
    "expected the node content, but found '<": "a value is missing here",
    "expected the node content, but found '(.*)'": "a value is missing before {0}; write text that begins with it in "
    "quotes",
    "sequence entries are not allowed here": "an entry of a list can't begin here; begin it in a line of its own",
    "second occurrence": "the anchor is given twice; rename one of them",
    "expected '<document start>'": "a directive can't begin here; write text that begins with % in quotes",
    "found unconstructable recursive node": "a value contains itself; remove the alias in it",
}
"""Messages of PyYAML, and the words for its users."""


class _Loader(yaml.SafeLoader):
    """Gives plain scalars the types of YAML 1.2's core schema."""

    # By the first character; None is for all.
    yaml_implicit_resolvers: ClassVar[Any] = {
        None: [(f"tag:yaml.org,2002:{kind}", re.compile(rf"^(?:{pattern})$")) for kind, pattern in _PLAIN.items()]
    }

    def construct_document(self, node: yaml.Node) -> Any:
        self.deep_construct = True  # Lists and mappings that contain themselves are errors then.
        return super().construct_document(node)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = set[str]()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                name = f" {key.value!r}" if isinstance(key, yaml.ScalarNode) else ""
                raise _error(f"the name{name} must be text; write it in quotes", key)
            if key.value in names:
                raise _error(f"{key.value!r} is given twice", key)
            names.add(key.value)
        return super().construct_mapping(node, deep=True)


def load_yaml(text: bytes) -> Any:
    """The values of a YAML document. Raises `InputError`, which names the line."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InputError(where + _in_words(error)) from None
    except yaml.reader.ReaderError as error:
        raise InputError(_unreadable(error)) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(" ".join(str(error).split())) from None
    except RecursionError:
        raise InputError("it is nested too deeply") from None


def _in_words(error: yaml.MarkedYAMLError) -> str:
    """The mistake and its remedy, instead of the state of the parser."""
    problem, begin = error.problem or error.context or "it is not valid", error.context_mark
    since = f" that begins in line {begin.line + 1}" if begin else ""
    for pattern, words in _PROBLEMS.items():
        if found := re.match(pattern, problem):
            return words.format(*found.groups(), since=since)
    return " ".join(problem.split())


def _unreadable(error: yaml.reader.ReaderError) -> str:
    if error.encoding != "unicode":
        return "it is not UTF-8 text; save it as UTF-8"
    return f"it has the character U+{int(error.character):04X}, which is not valid; remove it"


def _error(message: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, message, node.start_mark)


def _refuse(_: _Loader, node: yaml.Node) -> Any:
    valid = "text, numbers, true, false, null, lists, mappings"
    raise _error(f"{node.tag.rpartition(':')[2]} is not valid; valid: {valid}", node)


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    number = float(str(loader.construct_scalar(node)))
    if not math.isfinite(number):
        raise _error(f"{node.value} is too large", node)
    return number


def _int(loader: _Loader, node: yaml.ScalarNode) -> int:
    try:
        return int(str(loader.construct_scalar(node)))
    except ValueError:
        raise _error(f"{node.value:.40} is not an integer, or too long", node) from None


_Loader.add_constructor("tag:yaml.org,2002:int", _int)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
for _other in ("binary", "timestamp", "set", "omap", "pairs", "merge"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_other}", _refuse)
