"""Column types for what SQL has no word for."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import DateTime, Dialect, Text
from sqlalchemy.types import TypeDecorator


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands in a row for a value that this release can't read, so that the other rows are read nevertheless."""

    why: str


class _Readable(TypeDecorator[Any]):
    """A column whose unreadable values come out as `Unreadable` instead of ending the query."""

    impl = Text
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:  # type: ignore[override]
        """Read a value, or say why it can't be read."""
        inner = super().result_processor(dialect, coltype)

        def process(value: Any) -> Any:
            try:
                return inner(value) if inner else value
            except ValidationError as error:
                return Unreadable(_first(error))
            except (ValueError, TypeError) as error:
                return Unreadable(str(error))

        return process


class Moment(_Readable):
    """A point in time. Goes in and comes out aware and in UTC, also where the database forgets the zone (SQLite)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Bring `value` to UTC."""
        return value.astimezone(UTC) if value else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give the zone back."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Document(_Readable):
    """A value of a pydantic type, kept as JSON text."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Write `value` as JSON."""
        return None if value is None else self._adapter.dump_json(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Read and check it again."""
        return None if value is None else self._adapter.validate_json(value)


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, in one line: where in the value, and what."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
