from pathlib import Path

import pytest

from rolecall.settings.private_paths import readable_secret_files


def test_secret_files_that_every_user_can_read_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, mode in (
        ("ROLECALL_NODE_TOKEN_FILE", 0o644),
        ("ROLECALL_TLS_KEY", 0o604),
        ("ROLECALL_TOKEN_FILE", 0o640),
    ):
        path = tmp_path / name
        path.write_text("secret")
        path.chmod(mode)
        monkeypatch.setenv(name, str(path))
    monkeypatch.setenv("ROLECALL_DATABASE_URL_FILE", str(tmp_path / "missing"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    database, connection, closed = tmp_path / "rolecall.db", tmp_path / "rolecall/local-1.json", tmp_path / "closed"
    connection.parent.mkdir()
    for path in (database, connection, closed):
        path.write_text("secret")
        path.chmod(0o600 if path == closed else 0o644)
    found = readable_secret_files(database, closed, tmp_path / "missing")
    assert {path.name for path in found} == {
        "ROLECALL_NODE_TOKEN_FILE",
        "ROLECALL_TLS_KEY",
        database.name,
        "local-1.json",
    }
