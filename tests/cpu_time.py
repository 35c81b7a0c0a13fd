"""Limits of times that hold on slower machines, too."""

import json
import time
from functools import cache

_PARSE_S = 0.014
"""CPU time of parsing the document below on a machine at its usual speed. It is an estimate: a machine on which
`import torch` took 2.1 to 3.3 times as long as usual needed 0.030 to 0.056 s."""


def is_within(spent: float, limit: float) -> bool:
    """True for a time within a limit of the same unit, which is longer on a machine that is slower at the moment.

    The time is one of the CPU, also as a share of it, or one on an idle machine that mostly computes in it.
    """
    return spent < limit or spent < limit * slowness()  # Measured only if it matters, because it takes 0.1 s.


def slowness() -> float:
    """The factor by which programs compute longer than usual at the moment, at least 1.

    Machines differ, and the same instructions take longer while other programs share the core, its caches or the host.
    Multiply the limit of a time by it.
    """
    return max(1.0, min(_parse_s() for _ in range(3)) / _PARSE_S)


def _parse_s() -> float:
    document = _document()
    begin = time.thread_time()
    json.loads(document)
    return time.thread_time() - begin


@cache
def _document() -> str:
    """Its 120,000 objects, 8 MB, outgrow the caches of a core, as those of the tests with limits do.

    A loop in the first cache would not show that other programs take the bandwidth of the memory: it runs as fast as
    ever while imports and parsers need twice the time.
    """
    return json.dumps([{"step": n, "loss": 0.5, "name": f"w{n}", "tags": [1, 2.5, None]} for n in range(20_000)])
