"""The parameters of `preflight`."""

from pydantic import Field

from rolecall.spec.workload import PerNodeParams


class Params(PerNodeParams):
    """The nodes, the duration of the measurements, and the limits of a good link."""

    measure_s: float = Field(default=15.0, gt=0, le=3600)
    """Seconds for all measurements. If calls stall or are slow, they may take 40 s longer, then the rest is skipped and
    reported. Pairs that have a node in common are measured one after the other."""
    slow_ping_ms: float = Field(default=20.0, gt=0, le=1e9)
    """Milliseconds. A longer round trip of a small RPC call is a warning."""
    slow_mb_per_s: float = Field(default=10.0, gt=0, le=1e9)
    """Megabytes per second. A lower RPC bandwidth in either direction is a warning."""
