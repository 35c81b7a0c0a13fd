from rolecall.edge.connection_table import ConnectionLimits, ConnectionTable, Group, GroupLimit, LimitExceeded, Owner


class Line:
    """A fake connection."""

    evicted = False

    def evict(self) -> None:
        self.evicted = True


ALICE, BOB = Owner(Group.USERS, "alice"), Owner(Group.USERS, "bob")


def make(**values: GroupLimit | int) -> ConnectionTable:
    return ConnectionTable(ConnectionLimits(**values))  # type: ignore[arg-type]


def admit(table: ConnectionTable, *peers: str) -> list[Line]:
    lines = [Line() for _ in peers]
    for line, peer in zip(lines, peers, strict=True):
        assert table.admit(line, peer) is None
    return lines


def test_a_new_connection_evicts_the_oldest_anonymous_one_of_its_address() -> None:
    table = make(anonymous=GroupLimit(2, 9))
    lines = admit(table, "b", "a", "a", "a")
    assert [line.evicted for line in lines] == [False, True, False, False]
    assert table.total == 3


def test_the_address_with_most_anonymous_connections_loses_its_oldest() -> None:
    for limits in ({"anonymous": GroupLimit(9, 3)}, {"connections": 3}):
        table = make(**limits)  # type: ignore[arg-type]
        lines = admit(table, "a", "b", "b", "c")
        assert [line.evicted for line in lines] == [False, True, False, False], limits


def test_an_authenticated_connection_is_never_evicted() -> None:
    table = make(connections=2, anonymous=GroupLimit(1, 1))
    first, second = Line(), Line()
    for line in (first, second):
        assert table.admit(line, "a") is None
        assert table.claim(line, Owner(Group.NODES, "")) is None
    assert table.admit(Line(), "b") == "2 connections are open"
    assert not first.evicted
    assert not second.evicted
    table.remove(first)
    assert table.admit(Line(), "b") is None


def test_neither_a_token_nor_a_group_exceeds_its_limit() -> None:
    table = make(users=GroupLimit(2, 3))
    for owner, expected in [
        (ALICE, None),
        (ALICE, None),
        (ALICE, LimitExceeded("2 connections of this token's are open already", by_owner=True)),
        (BOB, None),
        (BOB, LimitExceeded("3 connections of users are open already", by_owner=False)),
        (Owner(Group.ADMINS, "admin"), None),
        (Owner(Group.WORKERS, "job"), None),
        (Owner(Group.NODES, ""), None),
    ]:
        (line,) = admit(table, "a")
        assert table.claim(line, owner) == expected


def test_a_connection_counts_for_its_last_user() -> None:
    table = make(users=GroupLimit(1, 2))
    line, other = admit(table, "a", "a")
    for owner in (ALICE, ALICE, BOB, BOB):  # A proxy sends the requests of many users on one connection.
        assert table.claim(line, owner) is None
    assert table.claim(other, ALICE) is None
    refused = table.claim(line, ALICE)
    assert refused is not None
    assert refused.by_owner
    assert table.owner(line) == BOB
    table.remove(line)
    table.remove(line)
    assert table.claim(line, BOB) is None, "a request that outlives its connection counts nowhere"
    assert table.total == 1


def test_anonymous_connections_are_crowded_at_half_of_their_limit() -> None:
    table = make(anonymous=GroupLimit(4, 6))
    (first,) = admit(table, "a")
    assert not table.is_crowded(first)
    (second,) = admit(table, "a")
    assert table.is_crowded(second)
    admit(table, "b")
    assert table.claim(second, ALICE) is None
    assert not table.is_crowded(second)
    assert not table.is_crowded(first)
    admit(table, "c")
    assert table.is_crowded(first)


def test_the_defaults_leave_room_for_many_nodes_behind_one_address() -> None:
    limits = ConnectionLimits()
    assert limits.connections - sum(limits.group(group).total for group in ("anonymous", "users", "workers")) >= 500  # type: ignore[arg-type]
    assert limits.anonymous.each >= 200
