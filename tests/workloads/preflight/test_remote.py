# pyright: standard
"""The messages through the master, with blobs in a dictionary, and RPC measured between two real processes."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.clock import ManualClock
from tests.ports import free_port
from torch.distributed import rpc

from rolecall.network.links import Link, gather_links
from rolecall.network.pairs import Speed
from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import CheckpointError, NoSuchBlob, RendezvousTimeout
from rolecall.testing.gang import processes
from rolecall.workloads.preflight import remote
from rolecall.workloads.preflight.remote import BlobExchange, Messages, measure, only_unreachable

BUDGET_S = 0.5


@dataclass
class Blobs:
    """The master's blobs of one attempt; `broken` is raised to whoever asks."""

    stored: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    broken: Exception | None = None
    then: Callable[[str], None] = lambda _: None

    def put(self, name: str, path: Path, sha256: str) -> None:
        self.stored[name] = path.read_text()

    def get(self, blob: str, path: Path) -> None:
        name = blob.removeprefix("1/")
        self.asked.append(name)
        self.then(name)
        if self.broken:
            raise self.broken
        if name not in self.stored:
            raise NoSuchBlob(name)
        path.write_text(self.stored[name])


def exchange_of(
    rank: int,
    nodes: list[str],
    blobs: Blobs,
    folder: Path,
    shortened: Mapping[str, Callable[[Messages], Messages]] | None = None,
    *,
    clock: ManualClock | None = None,
) -> BlobExchange:
    """The exchange as the worker of that rank sees it."""
    folder.mkdir(exist_ok=True)
    workers = [SimpleNamespace(node=node) for node in nodes]
    launch = SimpleNamespace(attempt=1, worker=workers[rank], gang=SimpleNamespace(workers=workers))
    parts: dict[str, Any] = {"artifacts": SimpleNamespace(blobs=blobs), "workdir": SimpleNamespace(scratch=folder)}
    context = cast(WorkerContext, SimpleNamespace(launch=launch, rank=rank, **parts))
    times: dict[str, Any] = {} if clock is None else {"clock": clock, "sleep": clock.sleep}
    return BlobExchange(context, shortened, **times)


def test_all_receive_all_messages_and_some_topics_in_short(tmp_path: Path) -> None:
    blobs = Blobs()
    first, second = (
        exchange_of(
            rank, ["a", "b"], blobs, tmp_path / str(rank), {"links": lambda words: dict.fromkeys(words, "short")}
        )
        for rank in range(2)
    )
    for topic in ("facts", "links"):
        for one, word in ((first, "long a"), (second, "long b")):
            one.post(topic, word)
    received: dict[str, Messages] = {}
    waiting = threading.Thread(
        target=lambda: received.update(facts=second.gather("facts"), links=second.gather("links"))
    )
    waiting.start()
    assert first.gather("links") == first.gather("facts") == {"a": "long a", "b": "long b"}
    waiting.join(20)
    assert received == {"facts": {"a": "long a", "b": "long b"}, "links": {"a": "short", "b": "short"}}


@pytest.mark.parametrize("count", [2, 200])
def test_many_nodes_ask_the_master_no_more_often_than_a_few(tmp_path: Path, count: int) -> None:
    clock = ManualClock()
    blobs = Blobs()
    with pytest.raises(RendezvousTimeout, match=r"no facts within 60 s from node n0$"):
        exchange_of(1, [f"n{number}" for number in range(count)], blobs, tmp_path, clock=clock).gather("facts")
    assert count * len(blobs.asked) / clock.now < 100
    assert len(set(clock.pauses)) > 1, "not all nodes at the same times"


def test_who_spoke_while_the_last_look_went_on_is_not_blamed(tmp_path: Path) -> None:
    """Looking takes its time: the others' words came while rank 0 waited for the master's answers."""
    clock = ManualClock()
    blobs = Blobs({"facts/a": "a"})

    def slowly(name: str) -> None:
        clock.now += 31
        if len(blobs.asked) > 2:
            blobs.stored["facts/b"] = "b"

    blobs.then = slowly
    assert exchange_of(0, ["a", "b"], blobs, tmp_path, clock=clock).gather("facts") == {"a": "a", "b": "b"}


def test_who_stays_silent_is_named(tmp_path: Path) -> None:
    clock = ManualClock()
    blobs = Blobs({"facts/a": "a", "facts/c": "c"})
    with pytest.raises(RendezvousTimeout, match=r"no facts within 30 s from node b, d$"):
        exchange_of(0, ["a", "b", "c", "d"], blobs, tmp_path, clock=clock).gather("facts")
    assert clock.now < 32


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_wrong_with_the_master_is_reported_at_once_and_not_waited_for(tmp_path: Path, rank: int) -> None:
    blobs = Blobs(broken=CheckpointError("the master refused /internal: 401"))
    with pytest.raises(CheckpointError, match="401"):
        exchange_of(rank, ["a", "b"], blobs, tmp_path).gather("facts")
    assert len(blobs.asked) == 1


def test_only_unreachable_links_are_left() -> None:
    """In the format of `links`, which reads them."""
    intact, cut = Link(origin="a", target="b", seconds=0.1), Link(origin="b", target="a", error="no", remedy="mend")
    words = {link.origin: json.dumps({"links": [link.model_dump()]}) for link in (intact, cut)}

    class CutLink:
        def post(self, topic: str, text: str) -> None: ...

        def gather(self, topic: str) -> Messages:
            return only_unreachable(words)

    assert gather_links(CutLink()) == [cut]


def _rank(rank: int, port: int, ours: Connection) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", _transports=["uv"])
    rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    remote.CALL_S = 1.0
    while rank == 0:
        ours.recv()
        begin = time.monotonic()
        ours.send((measure("rank-1", BUDGET_S), time.monotonic() - begin))
    time.sleep(60)


@pytest.mark.slow
def test_speeds_are_figures_and_a_stall_is_reported_in_time() -> None:
    port = free_port()
    ours, theirs = processes.Pipe()
    ranks = [processes.Process(target=_rank, args=(rank, port, theirs), daemon=True) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        speed, took_s = _ask(ours)
        assert isinstance(speed, Speed)
        assert 0 < speed.ping_ms < 1000
        assert speed.sent_mb_per_s > 1
        assert speed.received_mb_per_s > 1
        assert took_s < 10 * BUDGET_S
        assert ranks[1].pid
        os.kill(ranks[1].pid, signal.SIGSTOP)
        why, took_s = _ask(ours)
        assert isinstance(why, str)
        assert "timeout (1000 ms)" in why
        assert took_s < 5
    finally:
        for process in ranks:
            process.kill()
            process.join()


def _ask(ours: Connection) -> tuple[Speed | str, float]:
    ours.send("measure")
    assert ours.poll(60)
    return ours.recv()
