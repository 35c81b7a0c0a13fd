# pyright: reportPrivateUsage=false
"""An artifact is stored in the end, however long the store is unavailable."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runtime.test_attempt_client import answering

from rolecall.runtime import artifacts, attempt_client
from rolecall.runtime.artifacts import Artifacts
from rolecall.runtime.blobs import SharedBlobs
from rolecall.spec.errors import BlobsUnavailable


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_client, "_GIVE_UP_S", 0.1)
    monkeypatch.setattr(artifacts, "_PAUSE_S", 0.01)


def test_a_master_that_is_unavailable_for_long_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    events: list[str] = []
    answers = [503] * 10 + [200, 503, 503, 503, 503, 200]
    with answering(answers) as client:
        Artifacts(client, client, 1, on_wait=events.append).put("model", tmp_path / "model")
    assert answers == [200]
    assert events[0].startswith("the artifact model can't be stored yet: the master could neither store nor send files")


def test_a_store_that_fails_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    store = tmp_path / "store"
    with answering([200]) as client:
        blobs = SharedBlobs(str(store), "job", 1)
        shutil.rmtree(store)
        store.write_text("no longer mounted")

        def repair(_: str) -> None:
            store.unlink()
            (store / "job").mkdir(parents=True)

        Artifacts(blobs, client, 1, on_wait=repair).put("model", tmp_path / "model")
    assert (store / "job/1/model").read_bytes() == b"weights"


def test_a_store_that_refuses_this_job_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    with answering([200]) as client:
        blobs = SharedBlobs(str(tmp_path), "job", 1)
        monkeypatch.setattr(blobs._files, "put_file", _refusing(PermissionError("access denied")))
        with pytest.raises(BlobsUnavailable, match="access denied"):
            Artifacts(blobs, client, 1).put("model", tmp_path / "model")


def _refusing(error: OSError) -> Callable[[str, Path], None]:
    def refuse(name: str, path: Path) -> None:
        raise error

    return refuse
