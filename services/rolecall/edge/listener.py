"""The socket that a program's HTTP server listens on."""

import socket

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A TCP socket that listens on an address; port 0 takes a free one. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    # Connections inherit it. asyncio sets it only on those that it opened the listener for: without it, each answer
    # waits up to 40 ms for the client's acknowledgement of its head before its body goes out (RFC 896, RFC 1122).
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
