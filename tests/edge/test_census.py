from rolecall.edge.census import Census, Excess, Group, Holder, Limits, Share


class Line:
    """A connection."""

    evicted = False

    def evict(self) -> None:
        self.evicted = True


ALICE, BOB = Holder(Group.USERS, "alice"), Holder(Group.USERS, "bob")


def make(**values: Share | int) -> Census:
    return Census(Limits(**values))  # type: ignore[arg-type]


def admit(census: Census, *peers: str) -> list[Line]:
    lines = [Line() for _ in peers]
    for line, peer in zip(lines, peers, strict=True):
        assert census.admit(line, peer) is None
    return lines


def test_a_newcomer_takes_the_place_of_its_addresss_oldest_stranger() -> None:
    census = make(strangers=Share(2, 9))
    lines = admit(census, "b", "a", "a", "a")
    assert [line.evicted for line in lines] == [False, True, False, False]
    assert census.total == 3


def test_the_address_with_most_strangers_gives_up_its_oldest() -> None:
    for limits in ({"strangers": Share(9, 3)}, {"connections": 3}):
        census = make(**limits)  # type: ignore[arg-type]
        lines = admit(census, "a", "b", "b", "c")
        assert [line.evicted for line in lines] == [False, True, False, False], limits


def test_who_has_shown_a_token_is_never_evicted() -> None:
    census = make(connections=2, strangers=Share(1, 1))
    first, second = Line(), Line()
    for line in (first, second):
        assert census.admit(line, "a") is None
        assert census.claim(line, Holder(Group.NODES, "")) is None
    assert census.admit(Line(), "b") == "2 connections are open"
    assert not first.evicted
    assert not second.evicted
    census.leave(first)
    assert census.admit(Line(), "b") is None


def test_neither_a_token_nor_a_group_holds_more_than_its_share() -> None:
    census = make(users=Share(2, 3))
    for holder, expected in [
        (ALICE, None),
        (ALICE, None),
        (ALICE, Excess("2 connections of this token's are open already", own=True)),
        (BOB, None),
        (BOB, Excess("3 connections of users are open already", own=False)),
        (Holder(Group.ADMINS, "admin"), None),
        (Holder(Group.WORKERS, "job"), None),
        (Holder(Group.NODES, ""), None),
    ]:
        (line,) = admit(census, "a")
        assert census.claim(line, holder) == expected


def test_a_connection_counts_for_whoever_used_it_last() -> None:
    census = make(users=Share(1, 2))
    line, other = admit(census, "a", "a")
    for holder in (ALICE, ALICE, BOB, BOB):  # A proxy's connection is used by many.
        assert census.claim(line, holder) is None
    assert census.claim(other, ALICE) is None
    refused = census.claim(line, ALICE)
    assert refused is not None
    assert refused.own
    assert census.holder(line) == BOB
    census.leave(line)
    census.leave(line)
    assert census.claim(line, BOB) is None, "a request that outlives its connection counts nowhere"
    assert census.total == 1


def test_strangers_crowd_at_half_of_what_they_may_hold() -> None:
    census = make(strangers=Share(4, 6))
    (first,) = admit(census, "a")
    assert not census.crowds(first)
    (second,) = admit(census, "a")
    assert census.crowds(second)
    admit(census, "b")
    assert census.claim(second, ALICE) is None
    assert not census.crowds(second)
    assert not census.crowds(first)
    admit(census, "c")
    assert census.crowds(first)


def test_the_defaults_leave_room_for_many_nodes_behind_one_address() -> None:
    limits = Limits()
    assert limits.connections - sum(limits.share(group).together for group in ("strangers", "users", "workers")) >= 500  # type: ignore[arg-type]
    assert limits.strangers.each >= 200
