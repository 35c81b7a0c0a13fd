"""Ports for programs that listen only after a test has chosen their port."""

import random
import socket
from pathlib import Path

_PORTS = 16384


def free_port(host: str = "127.0.0.1") -> int:
    """A port of this machine where nobody listens.

    It is outside the kernel's ephemeral range: within it, a worker of another test can get the port before the program
    listens. A test that then sends HTTP to the port ends that worker, because TensorPipe takes the text for a length.
    """
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    # Hypothesis seeds the module's own generator, which would choose the same ports in each process of pytest.
    choices = random.SystemRandom().sample([*range(max(1024, first - _PORTS), first), *range(last + 1, 1 << 16)], 100)
    return next(port for port in choices if _is_free(host, port))


def _is_free(host: str, port: int) -> bool:
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return False
    return True
