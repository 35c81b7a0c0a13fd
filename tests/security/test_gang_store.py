# pyright: standard, reportPrivateImportUsage=false
"""An intruder at the store through which a gang meets, over real sockets: each worker is a process."""

import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest
import torch.distributed as dist

from rolecall.runtime import gang_store
from rolecall.spec.errors import RendezvousTimeout, RolecallError
from rolecall.spec.plan import GangPlan, WorkerLaunch, WorkerPlan
from rolecall.spec.role import Role
from rolecall.testing.gang import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
SECRET = "what only this gang knows"


def launch(rank: int, secret: str, address: str) -> WorkerLaunch:
    workers = tuple(WorkerPlan(rank=one, role=Role.TRAINER, role_rank=one, node="n", threads=1) for one in range(2))
    return WorkerLaunch(
        job="j", attempt=1, workload="w", params={}, worker=workers[rank], gang=GangPlan(workers=workers),
        master_addr=address, secret=secret,
    )  # fmt: skip


def play(rank: int, secret: str, address: str, seal_s: float, test: Connection) -> None:
    """One worker, which does each thing when the test says so: connect, meet, talk."""
    mine, entrance = launch(rank, secret, address), None
    gang_store._SEAL_TIMEOUT_S = seal_s
    try:
        port = test.recv()
        entrance = gang_store.enter(mine, port, 2, 30) if rank else gang_store.host(mine, 2, 30)
        test.send(entrance.port)
        test.recv()
        common, other = entrance.assemble(lambda ranks: RendezvousTimeout(str(ranks)), 5)
        common.set(f"address/{rank}", f"of {rank}")
        test.send([common.get(f"address/{one}").decode() for one in (0, 1)])
        test.recv()
        test.send([other.get(f"address/{one}").decode() for one in (0, 1)])
        test.recv()
    except RolecallError as error:
        test.send(error)
        test.recv()


class Gang:
    """Two workers at the entrance."""

    def __init__(
        self, secrets: tuple[str, str] = (SECRET, SECRET), address: str = "127.0.0.1", seal_s: float = 30
    ) -> None:
        self.ends, self.processes = [], []
        for rank, secret in enumerate(secrets):
            end, theirs = processes.Pipe()
            process = processes.Process(target=play, args=(rank, secret, address, seal_s, theirs), daemon=True)
            process.start()
            self.ends.append(end)
            self.processes.append(process)
        self.port = self.ask(0, 0)
        self.ask(1, self.port)

    def ask(self, rank: int, word: Any) -> Any:
        self.ends[rank].send(word)
        return self.receive(rank)

    def receive(self, rank: int) -> Any:
        assert self.ends[rank].poll(60)
        return self.ends[rank].recv()

    def proceed(self) -> list[Any]:
        """Let both make their next step; return their answers."""
        for end in self.ends:
            end.send("on")
        return [self.receive(rank) for rank in (0, 1)]


@contextmanager
def gang(**given: Any) -> Generator[Gang]:
    made = Gang(**given)
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.join()


def intruder(port: int) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=5), wait_for_workers=False)


def refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except (dist.DistError, RuntimeError):
        return True
    return False


def test_an_intruder_who_came_early_is_cut_off_and_nobody_comes_later() -> None:
    with gang() as met:
        early = intruder(met.port)
        early.set("address/0", "forged")
        assert met.proceed() == [["of 0", "of 1"]] * 2
        assert refused(early.num_keys)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", met.port), timeout=1)
        assert met.proceed() == [["of 0", "of 1"]] * 2


def test_what_an_intruder_sees_before_is_of_no_use() -> None:
    with gang() as met:
        met.ends[0].send("on")
        early = intruder(met.port)
        early.wait(["arrived/0"], timedelta(seconds=30))
        assert early.num_keys() == 1
        assert SECRET.encode() not in early.get("arrived/0")
        met.ends[1].send("on")
        assert [met.receive(rank) for rank in (0, 1)] == [["of 0", "of 1"]] * 2


def test_an_intruder_in_the_place_of_a_worker_ends_the_attempt() -> None:
    with gang() as met:
        intruder(met.port).set("arrived/1", f"{'0' * 64} []")
        met.ends[0].send("on")
        error = met.receive(0)
        assert type(error).__name__ == "IntrudedGang"
        assert "arrived/1" in str(error)
        assert "allow only the gang's nodes to reach the gang ports" in str(error)


def test_a_store_of_another_job_is_noticed() -> None:
    with gang(secrets=("another secret", SECRET), seal_s=2) as met:
        first, second = met.proceed()
        assert type(first).__name__ == "IntrudedGang"
        assert type(second).__name__ in {"IntrudedGang", "RendezvousTimeout"}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_the_store_listens_at_the_gangs_address_alone(address: str) -> None:
    with gang(address=address) as met:
        listeners = [
            one.laddr.ip
            for one in psutil.Process(met.processes[0].pid).net_connections("tcp")
            if one.status == psutil.CONN_LISTEN
        ]
        assert set(listeners) == {address}
        assert met.proceed() == [["of 0", "of 1"]] * 2
