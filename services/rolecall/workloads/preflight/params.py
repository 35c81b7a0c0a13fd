"""What may be asked of `preflight`."""

from pydantic import Field

from rolecall.spec.workload import PerNodeParams


class Params(PerNodeParams):
    """Which nodes, for how long, and what is too slow."""

    measure_s: float = Field(default=15.0, gt=0, le=3600)
    """Seconds for the measurements in all, unless calls stall or are slow: 40 s later the rest is given up, and told.
    Pairs that have a node in common are measured one after the other."""
    slow_ping_ms: float = Field(default=20.0, gt=0, le=1e9)
    """A round trip of a small RPC call that takes longer than so many milliseconds is a warning."""
    slow_mb_per_s: float = Field(default=10.0, gt=0, le=1e9)
    """A bandwidth of RPC below so many megabytes per second, in either direction, is a warning."""
