# pyright: standard
"""Tensors in messages between workers of one machine."""

import os
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from threading import Event
from typing import Any, NamedTuple

import pytest
import torch
from tests.own_process import worker_context

from rolecall.runtime import context as runtime_context
from rolecall.runtime import shared_memory
from rolecall.runtime.shared_memory import MIN_BYTES, presence, shared
from rolecall.spec.errors import PeerLost
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.role import Role
from rolecall.spec.shared_memory import SHARED_MEMORY, presence_name, remove_files
from rolecall.spec.workload import Params

SERVER, NEIGHBOR, REMOTE = (
    WorkerPlan(rank=rank, role=role, role_rank=role_rank, node=node, threads=1)
    for rank, (role, role_rank, node) in enumerate(
        ((Role.PARAMETER_SERVER, 0, "here"), (Role.TRAINER, 0, "here"), (Role.TRAINER, 1, "elsewhere"))
    )
)
BLOCK = MIN_BYTES // 4
"""The fewest float32 numbers that are shared."""
SIZE = 3 * BLOCK - 100
"""A size that blocks round up."""


class Pair(NamedTuple):
    rows: torch.Tensor
    name: str


@dataclass
class Other:
    rows: torch.Tensor


class Makes:
    """No named tuple."""

    def _make(self) -> None: ...


@pytest.fixture(autouse=True)
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process as the parameter server of a gang on two nodes."""
    with worker_context(tmp_path, Params(), Role.PARAMETER_SERVER) as made:
        gang = GangPlan(workers=(SERVER, NEIGHBOR, REMOTE))
        update = {"worker": SERVER, "gang": gang, "job": f"test{os.getpid()}", "secret": token_hex()}
        launch = made.launch.model_copy(update=update)
        monkeypatch.setattr(runtime_context, "_current", replace(made, launch=launch))
        with presence(launch), presence(launch.model_copy(update={"worker": NEIGHBOR})):
            yield
        remove_files(launch)


def sent(value: Any, receiver: str = "trainer-0") -> Any:
    """The value as its receiver gets it, which is this process, too."""
    return pickle.loads(pickle.dumps(shared(value, receiver)))


def is_shared(tensor: torch.Tensor) -> bool:
    """True if its memory is that of a file in `/dev/shm`."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split("-"))
        if begin <= tensor.data_ptr() < end:
            return f"{SHARED_MEMORY}/rolecall-test{os.getpid()}-1-0-" in line
    return False


def names() -> list[str]:
    """The names of this worker's blocks, without that of its presence."""
    present = presence_name(runtime_context.current().launch, 0)
    return [one.name for one in SHARED_MEMORY.glob(f"rolecall-test{os.getpid()}-1-0-*") if one.name != present]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.cfloat])
def test_a_worker_of_the_same_machine_gets_large_tensors_in_shared_memory(dtype: torch.dtype) -> None:
    tensor = torch.randint(2, (7, MIN_BYTES)).to(dtype)
    received = sent(tensor)
    assert is_shared(received)
    assert received.dtype == dtype
    torch.testing.assert_close(received, tensor, rtol=0, atol=0)


def test_a_received_tensor_is_the_receivers_own() -> None:
    tensor = torch.zeros(BLOCK)
    received = sent(tensor)
    received += 1
    assert tensor.sum() == 0
    assert received.sum() == BLOCK


def test_strides_remain_and_gaps_are_left_out() -> None:
    images = torch.randn(4, 3, 64, 64).to(memory_format=torch.channels_last)
    received = sent(images)
    assert is_shared(received)
    assert received.stride() == images.stride()
    torch.testing.assert_close(received, images, rtol=0, atol=0)
    columns = torch.randn(BLOCK, 3)[:, :2]
    received = sent(columns)
    assert is_shared(received)
    assert received.stride() == (2, 1), "as in a message through a socket"
    torch.testing.assert_close(received, columns, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12, in processes with threads
def test_a_process_that_the_receiver_forks_frees_no_block() -> None:
    received = sent(torch.full((BLOCK,), 1.0))
    child = os.fork()
    if not child:
        del received
        os._exit(0)
    os.waitpid(child, 0)
    other = sent(torch.full((BLOCK,), 2.0))
    assert (received.unique().tolist(), other.unique().tolist()) == ([1.0], [2.0])


def test_tensors_are_found_in_tuples_lists_and_dictionaries() -> None:
    tensor = torch.randn(BLOCK)
    received = sent({"rows": [(tensor, "a")], "pair": Pair(tensor, "b"), "step": 3})
    assert is_shared(received["rows"][0][0])
    assert isinstance(received["pair"], Pair)
    assert is_shared(received["pair"].rows)
    assert (received["rows"][0][1], received["pair"].name, received["step"]) == ("a", "b", 3)


def test_containers_of_other_classes_are_sent_as_they_are() -> None:
    tensor = torch.randn(BLOCK)
    for value in (
        OrderedDict(rows=tensor),
        torch.Size([1, 2]),
        torch.randn(3, 4).max(1),
        [(1, "a"), {"b": torch.ones(1)}],
        Makes(),
        Other(tensor),
        tensor.expand(2, BLOCK).max(1),
    ):
        assert shared(value, "trainer-0") is value, repr(value)


def test_other_tensors_and_messages_to_other_machines_are_sent_as_usual() -> None:
    tensor = torch.randn(BLOCK)
    for value, receiver in (
        (tensor, "trainer-1"),
        (tensor, "parameter-server-0"),
        (tensor, "observer-5"),
        (tensor[1:], "trainer-0"),
        (tensor.clone().requires_grad_(), "trainer-0"),
        (torch.nn.Parameter(tensor, requires_grad=False), "trainer-0"),
        (tensor.to_sparse(), "trainer-0"),
    ):
        assert shared(value, receiver) is value, f"{receiver} {value}"


def test_a_worker_is_present_until_it_leaves() -> None:
    launch = runtime_context.current().launch.model_copy(update={"worker": REMOTE})
    path = SHARED_MEMORY / presence_name(launch, REMOTE.rank)
    with presence(launch):
        assert path.stat().st_size == 0
        assert is_shared(sent(torch.zeros(BLOCK), "trainer-1")), "also on another node of this machine"
    assert not path.exists()


def test_a_worker_of_another_user_gets_messages_through_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    tensor = torch.zeros(BLOCK)
    assert shared(tensor, "trainer-0") is tensor


def test_a_machine_without_shared_memory_uses_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "SHARED_MEMORY", tmp_path / "none")
    tensor = torch.zeros(BLOCK)
    with presence(runtime_context.current().launch):
        assert shared(tensor, "trainer-0") is tensor


def test_a_process_that_is_no_worker_sends_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_context, "_current", None)
    tensor = torch.randn(BLOCK)
    assert shared(tensor, "trainer-0") is tensor


def test_a_block_is_used_again_when_the_receiver_no_longer_has_the_tensor() -> None:
    first = sent(torch.full((SIZE,), 1.0))
    second = sent(torch.full((SIZE,), 2.0))
    assert first.data_ptr() != second.data_ptr()
    at, view = first.data_ptr(), first[5:9]
    del first
    assert sent(torch.full((SIZE + 10,), 3.0)).data_ptr() != at, "a view needs the block, too"
    del view
    third = sent(torch.full((SIZE + 10,), 4.0))
    assert third.data_ptr() == at, "a little larger"
    assert sent(torch.full((10 * SIZE,), 5.0)).data_ptr() != at
    assert (second.unique().tolist(), third.unique().tolist()) == ([2.0], [4.0])


def test_a_small_tensor_does_not_take_a_large_block() -> None:
    large = sent(torch.zeros(10 * BLOCK))
    at = large.data_ptr()
    del large
    assert sent(torch.zeros(BLOCK)).data_ptr() != at


def test_blocks_grow_with_the_tensors() -> None:
    before = in_use()
    for number in range(30):
        sent(torch.zeros(BLOCK * (30 + number) // 10))
    assert in_use() - before < 2 * 4 * 6 * BLOCK, "smaller blocks are dropped"


def in_use() -> int:
    """The bytes of this process's blocks, as sender and as receiver."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    bounds = [line.split()[0].split("-") for line in lines if f"rolecall-test{os.getpid()}-" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in bounds)


def test_other_kinds_of_messages_keep_their_blocks() -> None:
    places = {sent(torch.zeros(size)).data_ptr() for _ in range(20) for size in (BLOCK, 50 * BLOCK, 8 * BLOCK)}
    assert len(places) == 3


def test_blocks_remain_when_there_is_no_memory_for_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    place = sent(torch.zeros(SIZE)).data_ptr()
    monkeypatch.setattr(os, "posix_fallocate", _no_memory)
    larger = torch.zeros(SIZE * 3 // 2)
    assert shared(larger, "trainer-0") is larger
    assert sent(torch.zeros(SIZE)).data_ptr() == place


def test_a_tensor_that_a_message_has_twice_arrives_as_one() -> None:
    tensor = torch.randn(BLOCK)
    first, second = sent((tensor, [tensor]))
    assert second[0].data_ptr() == first.data_ptr()


def test_messages_of_inference_mode_and_others_use_the_same_blocks() -> None:
    with torch.inference_mode():
        place = sent(torch.zeros(BLOCK)).data_ptr()
    received = sent(torch.ones(BLOCK))
    assert received.data_ptr() == place
    received.add_(1).detach_()
    assert received.unique().tolist() == [2.0]


def test_memory_that_cant_be_mapped_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("unable to mmap")

    monkeypatch.setattr(torch, "from_file", fail)
    tensor = torch.zeros(BLOCK)
    assert shared(tensor, "trainer-0") is tensor
    assert names() == []


def test_a_message_that_is_never_read_keeps_only_its_own_block() -> None:
    unread = shared(torch.full((BLOCK,), 1.0), "trainer-0")
    at = sent(torch.full((BLOCK,), 2.0)).data_ptr()
    assert sent(torch.full((BLOCK,), 3.0)).data_ptr() == at
    assert len(names()) == 1
    assert pickle.loads(pickle.dumps(unread)).unique().tolist() == [1.0]


def test_a_message_needs_not_wait_for_the_memory_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as threads:
        begun, allowed = Event(), Event()
        allocate = os.posix_fallocate

        def wait(*arguments: int) -> None:
            begun.set()
            assert allowed.wait(30)
            allocate(*arguments)

        sent(torch.zeros(BLOCK))
        monkeypatch.setattr(os, "posix_fallocate", wait)
        large = threads.submit(sent, torch.zeros(4 * BLOCK))
        assert begun.wait(30)
        assert is_shared(sent(torch.ones(BLOCK)))
        allowed.set()
        assert is_shared(large.result(30))


def test_several_threads_get_different_blocks() -> None:
    with ThreadPoolExecutor(8) as threads:
        received = list(threads.map(lambda number: sent(torch.full((BLOCK,), float(number))), range(64)))
    assert [one.unique().tolist() for one in received] == [[float(number)] for number in range(64)]


@pytest.mark.parametrize("found", ["nothing", "a link", "a smaller file"])
def test_a_message_whose_memory_is_gone_names_the_sender_as_the_cause(found: str, tmp_path: Path) -> None:
    message = pickle.dumps(shared(torch.zeros(BLOCK), "trainer-0"))
    block = SHARED_MEMORY / names()[0]
    block.unlink()
    if found == "a link":
        (tmp_path / "file").write_bytes(bytes(1 << 20))
        block.symlink_to(tmp_path / "file")
    elif found == "a smaller file":
        block.write_bytes(b"small")
    with pytest.raises(OSError if found == "a link" else PeerLost, match=block.name):
        pickle.loads(message)


def test_a_name_exists_only_until_the_receiver_opens_the_block() -> None:
    message = pickle.dumps(shared(torch.zeros(BLOCK), "trainer-0"))
    assert len(names()) == 1
    assert (SHARED_MEMORY / names()[0]).stat().st_mode & 0o777 == 0o600
    received = pickle.loads(message)
    assert names() == []
    assert received.sum() == 0


@pytest.mark.parametrize("limit", ["memory", "blocks"])
def test_tensors_go_through_sockets_when_there_is_no_more_shared_memory(
    limit: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if limit == "blocks":
        monkeypatch.setattr(shared_memory, "MAX_BLOCKS", 1)
    first = sent(torch.zeros(BLOCK))
    if limit == "memory":
        monkeypatch.setattr(os, "posix_fallocate", _no_memory)
    tensor = torch.randn(BLOCK)
    shared_memory._log_full.cache_clear()
    for _ in range(2):
        assert shared(tensor, "trainer-0") is tensor
    assert len(caplog.messages) == 1
    assert "half of /dev/shm is in use, and the rest is kept free" in caplog.text
    at = first.data_ptr()
    del first
    assert sent(tensor).data_ptr() == at, "blocks that exist are used again"
    assert names() == []


def _no_memory(*_: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(("available", "fits"), [(60, True), (59, False), (10, False)])
def test_half_of_the_shared_memory_is_left_to_others(
    available: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = os.statvfs_result((4096, 4096, 100, available, available, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    assert shared_memory._has_memory(10 * 4096) == fits
