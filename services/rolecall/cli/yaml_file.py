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
                raise _error(f"the name {getattr(key, 'value', '')!r} must be text; write it in quotes", key)
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
        raise InputError(where + ": ".join(filter(None, (error.context, error.problem)))) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(" ".join(str(error).split())) from None
    except RecursionError:
        raise InputError("it is nested too deeply") from None


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
    return int(str(loader.construct_scalar(node)))


_Loader.add_constructor("tag:yaml.org,2002:int", _int)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
for _other in ("binary", "timestamp", "set", "omap", "pairs", "merge"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_other}", _refuse)
