"""Requests of many tiny parts or with an ambiguous end are refused; others are parsed as by h11."""

import h11
import pytest

from rolecall.edge.bounded_parser import CHUNK_BYTES, MAX_LINES, MAX_SMALL_CHUNKS, BoundedConnection

HEAD = b"POST /jobs HTTP/1.1\r\nHost: master\r\nTransfer-Encoding: chunked\r\n\r\n"


def events(*received: bytes) -> list[h11.Event]:
    """The events of a server that receives these bytes one after another."""
    connection, found = BoundedConnection(64 << 10), list[h11.Event]()
    for data in received:
        connection.receive_data(data)
        while isinstance(event := connection.next_event(), h11.Event):
            found.append(event)
    return found


def chunks(*sizes: int) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (size, b"x" * size) for size in sizes)


def lines(count: int) -> bytes:
    return b"X: a\r\n" * count


def test_a_head_has_a_maximum_of_lines() -> None:
    request = b"GET / HTTP/1.1\r\nHost: master\r\n"
    (legal, _) = events(request + lines(MAX_LINES - 1) + b"\r\n")
    assert isinstance(legal, h11.Request)
    assert len(legal.headers) == MAX_LINES
    for head in (lines(MAX_LINES) + b"\r\n", lines(19_000) + b"\r\n", lines(19_000)):
        with pytest.raises(h11.RemoteProtocolError, match="too many lines"):
            events(request + head)
    with pytest.raises(h11.RemoteProtocolError, match="too many lines"):
        events(request, *[lines(1)] * (MAX_LINES + 1))


def test_every_head_of_a_connection_has_a_maximum_of_lines() -> None:
    connection = BoundedConnection(64 << 10)
    connection.receive_data(
        b"GET / HTTP/1.1\r\nHost: master\r\n\r\nGET / HTTP/1.1\r\nHost: master\r\n" + lines(MAX_LINES) + b"\r\n"
    )
    assert isinstance(connection.next_event(), h11.Request)
    assert isinstance(connection.next_event(), h11.EndOfMessage)
    connection.send(h11.Response(status_code=204, headers=[]))
    connection.send(h11.EndOfMessage())
    connection.start_next_cycle()
    with pytest.raises(h11.RemoteProtocolError, match="too many lines"):
        connection.next_event()


@pytest.mark.parametrize("begin", [b"0\n", b"0\r\n", b"\r\n0\r\n"])
def test_a_body_that_looks_like_a_last_chunk_is_none(begin: bytes) -> None:
    body = begin + b"0\n" * 1000
    plain = b"POST / HTTP/1.1\r\nHost: master\r\nContent-Length: %d\r\n\r\n" % len(body)
    chunked = HEAD + b"%x\r\n" % (1 + len(body)) + b"x"
    for received in (
        [plain + body],
        [plain, body],
        [chunked, body, b"\r\n0\r\n\r\n"],
        [chunked + body, b"\r\n0\r\n\r\n"],
    ):
        found = events(*received)
        assert b"".join(one.data for one in found if isinstance(one, h11.Data)).endswith(body)
        assert isinstance(found[-1], h11.EndOfMessage)


@pytest.mark.parametrize("body", [b"0\r\n " + b"0\n" * 1000, b"\r\n0\n 0\r\n\r\n"])
def test_a_body_is_none_wherever_the_network_divides_it(body: bytes) -> None:
    half = len(body) // 2
    received = HEAD + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:], b""))
    for cut in range(len(HEAD), len(received) - 2, 1 if half < 20 else 7):
        for size in (1, 2):
            found = events(received[:cut], received[cut : cut + size], received[cut + size :])
            assert b"".join(one.data for one in found if isinstance(one, h11.Data)) == body, (cut, size)
            assert isinstance(found[-1], h11.EndOfMessage)


def test_small_chunks_are_counted_wherever_the_network_divides_them() -> None:
    divided = [b"1\r\n", *[b"a\r\n1\r\n"] * MAX_SMALL_CHUNKS * 2]
    with pytest.raises(h11.RemoteProtocolError, match="small chunks"):
        events(HEAD, *divided)


def test_a_body_has_lines_without_limit() -> None:
    body = b"\n" * 10_000
    found = events(b"POST / HTTP/1.1\r\nHost: master\r\nContent-Length: 10000\r\n\r\n" + body)
    assert b"".join(one.data for one in found if isinstance(one, h11.Data)) == body
    found = events(HEAD + b"2710\r\n" + body + b"\r\n0\r\n\r\n")
    assert b"".join(one.data for one in found if isinstance(one, h11.Data)) == body


def test_a_body_has_small_chunks_in_proportion_to_its_size() -> None:
    large = [CHUNK_BYTES] * (10 * MAX_SMALL_CHUNKS)
    found = events(HEAD + chunks(*large, *[1] * MAX_SMALL_CHUNKS) + b"0\r\n\r\n")
    assert isinstance(found[-1], h11.EndOfMessage)
    for small in ([1] * (MAX_SMALL_CHUNKS + 1), [1] * 20_000):
        with pytest.raises(h11.RemoteProtocolError, match="too many small chunks"):
            events(HEAD + chunks(*small))


@pytest.mark.parametrize("last", [b"0\r\n", b"000;a=b \r\n"])
def test_a_trailer_has_a_maximum_of_lines(last: bytes) -> None:
    found = events(HEAD + chunks(5) + last + lines(MAX_LINES - 2) + b"\r\n")
    assert isinstance(found[-1], h11.EndOfMessage)
    begin = HEAD + chunks(5)
    for received in (
        [begin + last + lines(19_000) + b"\r\n"],
        [begin, last, lines(19_000)],
        [HEAD + last, lines(19_000)],
        [begin[:-1], b"\n" + last, lines(19_000)],
        [begin, last[:1], last[1:] + lines(19_000)],
    ):
        with pytest.raises(h11.RemoteProtocolError, match="too many lines"):
            events(*received)


@pytest.mark.parametrize(
    ("begin", "fields"),
    [
        (b"POST / HTTP/1.1", b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
        (b"POST / HTTP/1.1", b"content-length: 5\r\ntransfer-encoding: Chunked\r\n"),
        (b"POST / HTTP/1.0", b"Transfer-Encoding: chunked\r\n"),
        (b"POST / HTTP/1.1", b"Transfer-Encoding:\r\n chunked\r\n"),
        (b"POST / HTTP/1.1", b"Content-Length:\n\t5\r\n"),
        (b"POST / HTTP/1.1", b"X: a\r\n Content-Length: 5\r\n"),
        (b"POST / HTTP/1.1", b"Content-Length: 5\r\nContent-Length: 6\r\n"),
        (b"POST / HTTP/1.1", b"Content-Length: 5, 6\r\n"),
        (b"POST / HTTP/1.1", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        (b"POST / HTTP/1.1", b"Transfer-Encoding : chunked\r\n"),
    ],
)
def test_a_request_with_an_ambiguous_end_is_refused(begin: bytes, fields: bytes) -> None:
    smuggled = b"0\r\n\r\nGET /jobs HTTP/1.1\r\nHost: master\r\n\r\n"
    connection = BoundedConnection(64 << 10)
    connection.receive_data(begin + b"\r\nHost: master\r\n" + fields + b"\r\n" + smuggled)
    with pytest.raises(h11.RemoteProtocolError):
        connection.next_event()
    assert connection.their_state is h11.ERROR


def test_a_folded_trailer_is_refused_and_a_body_that_looks_folded_is_not() -> None:
    with pytest.raises(h11.RemoteProtocolError, match="a folded line"):
        events(HEAD + chunks(5) + b"0\r\nX: a\r\n b\r\n\r\n")
    found = events(b"POST / HTTP/1.1\r\nHost: master\r\nContent-Length: 4\r\n\r\n\n a\n", HEAD[:4])
    assert b"".join(one.data for one in found if isinstance(one, h11.Data)) == b"\n a\n"
    found = events(HEAD + b"4\r\n\n b\n\r\n0\r\n\r\n")
    assert b"".join(one.data for one in found if isinstance(one, h11.Data)) == b"\n b\n"


@pytest.mark.parametrize("value", [b"5\r\nContent-Length: 5", b"5, 5"])
def test_equal_lengths_are_one_length(value: bytes) -> None:
    found = events(b"POST / HTTP/1.1\r\nHost: master\r\nContent-Length: " + value + b"\r\n\r\nhello")
    assert b"".join(one.data for one in found if isinstance(one, h11.Data)) == b"hello"
