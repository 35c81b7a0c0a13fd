"""The parts that all settings share: the base class, the parsing of lists, and errors that name the variable."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ByteSize, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from rolecall.settings.secrets import SECRETS
from rolecall.spec.bounds import RULE
from rolecall.spec.errors import SettingsError
from rolecall.spec.json_schema import legal, members, not_null, resolved
from rolecall.spec.redaction import redact_text
from rolecall.spec.role import Role
from rolecall.spec.similar import most_similar
from rolecall.spec.value_errors import worded
from rolecall.spec.visible import cut, one_line

_S = TypeVar("_S", bound="SharedSettings")
_SHOWN_CHARS = 100
Size = Annotated[ByteSize, Field(json_schema_extra={RULE: "a number of bytes, or a size such as 100GiB"})]


class SharedSettings(BaseSettings):
    """Settings of every program."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", populate_by_name=True, env_ignore_empty=True, use_attribute_docstrings=True
    )

    data: Annotated[Path, Field(validation_alias="ROLECALL_DATA")] = Path("/var/lib/rolecall")
    """Folder for all persistent data: database, blobs, logs, caches."""
    log_format: Annotated[Literal["text", "json"], Field(validation_alias="ROLECALL_LOG_FORMAT")] = "text"
    """Log format: text, or json with an object a line, which can have the fields event, job, attempt, rank and node."""


def paths(given: Any) -> Any:
    """The paths in a colon-separated string; other values are returned unchanged."""
    return [part for part in given.split(":") if part] if isinstance(given, str) else given


def names(given: Any) -> Any:
    """The names in a comma-separated string; other values are returned unchanged."""
    return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given


def read(kind: type[_S], given: dict[str, Any]) -> _S:
    """Settings from the environment; `given` values win. Raises `SettingsError`, which names each wrong variable."""
    try:
        return kind(**given)
    except ValidationError as error:
        schema = kind.model_json_schema()
        raise SettingsError("; ".join(dict.fromkeys(_explain(one, schema) for one in error.errors()))) from None


def read_log_format() -> Literal["text", "json"]:
    return read(SharedSettings, {}).log_format


def read_role() -> str:
    """The container's `ROLE`, or a `SettingsError` that lists the valid ones."""
    role = os.environ.get("ROLE", "")
    if role not in set(Role):
        near = most_similar(role[:_SHOWN_CHARS], Role)
        hint = f" (did you mean '{near}'?)" if near else ""
        given = f"ROLE={cut(role, _SHOWN_CHARS)!r} is unknown{hint}" if role else "ROLE is not set"
        raise SettingsError(f"{given}; set it to one of: {', '.join(Role)}")
    return role


def _explain(problem: Any, schema: dict[str, Any]) -> str:
    if not problem["loc"]:
        return worded(problem, schema, schema)
    name, *rest = map(str, problem["loc"])
    field = resolved(schema, schema["properties"].get(name, {}))
    if problem["type"] == "missing":
        remedy = f"; set it, or {name}_FILE" if name in SECRETS else ""
        return f"{name} is not set" + (f"; set it to one of: {legal(schema, field)}" if members(field) else remedy)
    is_secret = name in SECRETS or field.get("writeOnly", False)
    field = not_null(field.get("items", field) if rest else field)
    message, valid = worded(problem, schema, field), legal(schema, field)
    given, choices = problem["input"], members(field)
    # The value is shown, except for a text that is no entry of a list: it can contain a password that is in no URL.
    is_safe = rest or choices or not problem["type"].startswith("string_")
    if isinstance(given, str) and not is_secret and is_safe and message.startswith("it "):
        near = most_similar(given[:_SHOWN_CHARS], map(str, choices)) if choices else None
        shown = one_line(cut(redact_text(given), _SHOWN_CHARS))
        message = f"'{shown}' {message[3:]}" + f"; did you mean '{near}'?" * bool(near)
    return f"{name}: {message}" + (f" (valid: {valid})" if valid not in message else "")
