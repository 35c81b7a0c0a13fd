"""The speed of RPC between two nodes. Runs in the calling worker at the request of rank 0."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch.distributed import rpc

from rolecall.network.pairs import Speed
from rolecall.network.survey import CALL_S

_PINGS = 20
# In bytes. The first transfers on a connection are slow, and one hiccup must not pass for a slow network.
_WARM_UP = (64 << 10,) * 3
_GROWING = (256 << 10, 1 << 20, 4 << 20, 8 << 20)


def measure(peer: str, budget_s: float) -> Speed | str:
    """The speed between this worker and `peer`, within about `budget_s` seconds; or in one line why RPC fails."""
    share_s = 3 * budget_s / 8
    try:
        ping_s = _ping_s(peer, budget_s / 4)
        sent = _best_rate(lambda size: _call(peer, _swallow, torch.zeros(size, dtype=torch.uint8)), share_s)
        received = _best_rate(lambda size: _call(peer, _produce, size), share_s)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return Speed(1e3 * ping_s, sent / 1e6, received / 1e6)


def _ping_s(peer: str, budget_s: float) -> float:
    taken: list[float] = []
    while len(taken) < _PINGS and sum(taken) < budget_s:
        taken.append(_timed(lambda: _call(peer, _produce, 1)))
    return median(taken)


def _best_rate(transfer: Callable[[int], object], budget_s: float) -> float:
    """Bytes per second of growing transfers; after the warm-up none is begun that would probably exceed the budget."""
    best, spent = 0.0, 0.0
    for number, size in enumerate((*_WARM_UP, *_GROWING)):
        if number >= len(_WARM_UP) and spent + size / best > budget_s:
            break
        took = _timed(lambda size=size: transfer(size))
        best, spent = max(best, size / took), spent + took
    return best


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _call(peer: str, function: Callable[..., Any], argument: Any) -> Any:
    return rpc.rpc_sync(peer, function, (argument,), timeout=CALL_S)


def _swallow(payload: torch.Tensor) -> int:
    return payload.numel()


def _produce(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)
