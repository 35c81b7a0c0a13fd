from pathlib import Path

import pytest
from tests.settings.conftest import TOKENS

from rolecall.settings.master import read_master
from rolecall.spec.errors import SettingsError


def test_secrets_come_from_variables_or_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKENS["ROLECALL_TOKEN"] + "\n")
    monkeypatch.setenv("ROLECALL_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("ROLECALL_NODE_TOKEN", TOKENS["ROLECALL_NODE_TOKEN"])
    read = read_master()
    assert read.token.get_secret_value() == TOKENS["ROLECALL_TOKEN"]
    assert TOKENS["ROLECALL_TOKEN"] not in repr(read)


def test_a_secret_file_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_TOKEN_FILE", "/nowhere/token")
    with pytest.raises(SettingsError, match=r"ROLECALL_TOKEN_FILE=/nowhere/token: No such file"):
        read_master()


def test_a_secret_file_that_holds_no_text_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe\x00")
    monkeypatch.setenv("ROLECALL_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(SettingsError, match=r"ROLECALL_TOKEN_FILE=.*/token is not a text file"):
        read_master()
