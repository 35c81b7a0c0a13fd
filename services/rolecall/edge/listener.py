"""Listening sockets of HTTP servers."""

import socket

_BACKLOG = 2048
ACCEPTS = 4
"""The number of connections that a server accepts in one pass of its event loop. asyncio accepts as many as its
`backlog`, so a flood of new connections would delay every call by the time of accepting thousands of them.
"""


def listen(host: str, port: int) -> socket.socket:
    """A TCP socket that listens on an address; port 0 selects a free port. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    # Without it, each response waits up to 40 ms between its head and its body for the client's acknowledgement (RFC
    # 896, RFC 1122). Connections inherit it. asyncio sets it only if asyncio itself opened the listener.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def restore_backlog(listener: socket.socket) -> None:
    """Let the kernel hold many new connections. asyncio limits them to its own `backlog`, see `ACCEPTS`."""
    listener.listen(_BACKLOG)
