"""Column types for times and JSON documents."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import DateTime, Dialect, Text
from sqlalchemy.types import TypeDecorator

from rolecall.spec.redaction import STORED


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A placeholder for a value that this release can't read, so that other rows can still be read."""

    why: str


class _Readable(TypeDecorator[Any]):
    """A column whose unreadable values become `Unreadable` instead of failing the query."""

    impl = Text
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:  # type: ignore[override]
        inner = super().result_processor(dialect, coltype)

        def process(value: Any) -> Any:
            try:
                return inner(value) if inner else value
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(str(part) for part in first["loc"])
                return Unreadable(f"{where}: {first['msg']}" if where else first["msg"])
            except (ValueError, TypeError) as error:
                return Unreadable(str(error))

        return process


class Moment(_Readable):
    """An aware point in time in UTC, even if the database stores no time zone (SQLite)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.astimezone(UTC) if value else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Document(_Readable):
    """A value of a pydantic type, stored as JSON."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else self._adapter.dump_json(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else self._adapter.validate_json(value, context=STORED)
