"""Who is measured with whom, and when."""


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Every pair of `count` players once, in as few rounds as there can be; no one plays twice in a round.

    The circle method of round-robin tournaments (Kirkman 1847): one player stays, the others move on by one place.
    """
    seats = [*range(count), *([None] if count % 2 else [])]
    found: list[list[tuple[int, int]]] = []
    for _ in range(len(seats) - 1):
        opposite = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found
