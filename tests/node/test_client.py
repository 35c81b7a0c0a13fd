"""The node's calls to a scripted master on a real socket."""

import threading
from collections.abc import Iterator

import pytest
from tests.node.harness import TOKEN, ScriptedMaster

from rolecall.node.client import MasterClient, MasterRefuses, MasterUnreachable
from rolecall.spec.errors import SettingsError
from rolecall.spec.node import Machine, NodeSpec
from rolecall.spec.role import Role

SPEC = NodeSpec(
    name="n", role=Role.TRAINER, slots=1, address="127.0.0.1", interface="lo", metrics_port=0, version="0", started="1",
    machine=Machine(boot_id="b", hostname="h", cores=1, cpu_slots=1, memory_bytes=1),
)  # fmt: skip


@pytest.fixture
def master() -> Iterator[ScriptedMaster]:
    master = ScriptedMaster()
    with master.serving():
        yield master


async def register(master: ScriptedMaster, *tokens: str | SettingsError) -> None:
    """Register with the tokens that the node's file holds from one read to the next."""
    left = list(tokens)

    def read() -> str:
        token = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(token, SettingsError):
            raise token
        return token

    client = MasterClient(f"http://127.0.0.1:{master.port}", read)
    try:
        await client.register(SPEC)
    finally:
        await client.close()


async def test_a_token_that_was_rotated_is_read_again(master: ScriptedMaster) -> None:
    await register(master, "the-token-before", TOKEN)
    assert [spec.name for spec in master.specs] == ["n"]


@pytest.mark.parametrize("second", ["the-token-before", SettingsError("the file is being replaced")])
async def test_a_token_that_is_wrong_is_refused(master: ScriptedMaster, second: str | SettingsError) -> None:
    with pytest.raises(MasterRefuses, match="ROLECALL_NODE_TOKEN"):
        await register(master, "the-token-before", second)


async def test_an_answer_that_can_not_be_decoded_is_no_answer(master: ScriptedMaster) -> None:
    master.garbled = True
    with pytest.raises(MasterUnreachable, match="incorrect header check"):
        await register(master, TOKEN)


async def test_a_port_where_nothing_listens_is_no_partition() -> None:
    with pytest.raises(MasterUnreachable) as error:
        await register(ScriptedMaster(), TOKEN)
    assert not error.value.partitioned


async def test_a_name_that_no_thread_can_resolve_is_no_error_of_its_own(
    master: ScriptedMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job can use up the threads of the machine. Other jobs' logs and the heartbeats must wait, not fail."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    client = MasterClient(f"http://localhost:{master.port}", lambda: TOKEN)
    monkeypatch.setattr(threading.Thread, "start", start)
    try:
        with pytest.raises(MasterUnreachable, match="can't start new thread") as error:
            await client.register(SPEC)
    finally:
        monkeypatch.undo()
        await client.close()
    assert not error.value.partitioned
