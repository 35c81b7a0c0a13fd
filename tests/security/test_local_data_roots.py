"""The data roots of a local cluster: the folder where it starts, unless that would open private files."""

from pathlib import Path

import pytest

from rolecall.cli.exits import CommandError
from rolecall.cli.local import _data_roots


def test_a_local_cluster_reads_below_the_folder_it_was_started_in(monkeypatch: pytest.MonkeyPatch) -> None:
    here, data = Path("/here"), Path("/here/.rolecall")
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", "/a:/b")
    assert _data_roots(here, data) == "/a:/b:/here"
    monkeypatch.delenv("ROLECALL_DATA_ROOTS")
    assert _data_roots(here, data) == "/data:/opt/rolecall/examples:/here"
    with pytest.raises(CommandError, match="contains a colon"):
        _data_roots(Path("/he:re"), data)


@pytest.mark.parametrize(
    "folder", ["/", "/home", "/home/me", "/etc", "/etc/me/rolecall", "/srv/data", "/srv/data/logs"]
)
def test_a_local_cluster_opens_no_private_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/me")
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", "/a")
    assert _data_roots(Path(folder), Path("/srv/data")) == "/a"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{folder} is not a data root, because it contains ")
    assert line.endswith("; start in the folder of the data, or set ROLECALL_DATA_ROOTS")
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", folder)
    assert _data_roots(Path(folder), Path("/srv/data")) == folder
    assert not capsys.readouterr().err
