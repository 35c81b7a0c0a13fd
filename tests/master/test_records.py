"""A row that this release can't read names its column, and holds up no other row."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Row, Table, Text, create_engine, insert, select, text

from rolecall.master.store.records import NotificationRecord, UnreadableRow, member, read, readable
from rolecall.master.store.types import Document, Moment
from rolecall.spec.state import JobState

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TABLE = Table(
    "rows",
    MetaData(),
    Column("id", Text),
    Column("number", Integer),
    Column("state", Text),
    Column("at", Moment),
    Column("counts", Document(dict[str, int])),
)


@dataclass(frozen=True)
class Short:
    id: str
    state: JobState


@pytest.fixture
def rows() -> Iterator[list[Row[Any]]]:
    """Three rows, of which the second has counts that are no numbers, and the third an unknown state."""
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        TABLE.metadata.create_all(connection)
        for name, state in (("a", "queued"), ("b", "running"), ("c", "lost")):
            values = {"id": name, "number": 7, "state": state, "at": NOW, "counts": {"x": 1}}
            connection.execute(insert(TABLE).values(values))
        connection.execute(text("""UPDATE rows SET counts = '{"x": "many"}' WHERE id = 'b'"""))
        yield list(connection.execute(select(TABLE)))
    engine.dispose()


def short(row: Row[Any]) -> Short:
    return read(Short, row, ("id",), state=member(JobState, row, "state"))


def test_a_record_has_the_named_columns_and_the_values_that_replace_them(rows: list[Row[Any]]) -> None:
    assert short(rows[0]) == Short("a", JobState.QUEUED)
    found = read(dict[str, Any], rows[0], number=8)
    assert found == {"id": "a", "number": 8, "state": "queued", "at": NOW, "counts": {"x": 1}}


def test_an_unreadable_column_is_named_even_if_the_record_does_not_have_it(rows: list[Row[Any]]) -> None:
    with pytest.raises(UnreadableRow, match=r"^its stored counts can't be read \(x: Input should be a valid integer"):
        short(rows[1])


def test_an_unknown_member_is_named_with_those_that_are_known(rows: list[Row[Any]]) -> None:
    with pytest.raises(UnreadableRow, match=r"its stored state can't be read \('lost' is none of queued, placed, "):
        short(rows[2])


def test_unreadable_rows_are_left_out_and_logged_once(rows: list[Row[Any]], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert list(readable(rows, short, "the row")) == [Short("a", JobState.QUEUED)]
        again = caplog.messages
        list(readable(rows, short, "another row"))
    assert [message.partition(" is left out: ")[0] for message in again] == ["the row b/7/running", "the row c/7/lost"]
    assert len(caplog.messages) == 4


def test_the_url_of_a_webhook_stays_out_of_logs() -> None:
    record = NotificationRecord(
        id=1, job="a", state=JobState.FAILED, at=NOW, next_at=NOW, tries=0, notify="https://h/secret", owner="me"
    )
    assert "secret" not in repr(record)
