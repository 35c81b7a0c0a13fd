from pathlib import Path

import pytest

from rolecall import settings
from rolecall.settings import readable_secret_files
from rolecall.spec.errors import SettingsError
from rolecall.spec.role import Role

TOKENS = {"ROLECALL_TOKEN": "u" * 16, "ROLECALL_NODE_TOKEN": "n" * 16}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROLE", "MASTER_ADDR", "ROLECALL_METRICS_TOKEN", *TOKENS):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(f"{name}_FILE", raising=False)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="ROLECALL_NODE_TOKEN is not set; set it, or ROLECALL_NODE_TOKEN_FILE"):
        settings.read_master()
    monkeypatch.setenv("ROLE", "trainer")
    with pytest.raises(SettingsError, match="MASTER_ADDR is not set"):
        settings.read_node()


def test_secrets_come_from_variables_or_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKENS["ROLECALL_TOKEN"] + "\n")
    monkeypatch.setenv("ROLECALL_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("ROLECALL_NODE_TOKEN", TOKENS["ROLECALL_NODE_TOKEN"])
    read = settings.read_master()
    assert read.token.get_secret_value() == TOKENS["ROLECALL_TOKEN"]
    assert TOKENS["ROLECALL_TOKEN"] not in repr(read)


def test_equal_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROLECALL_TOKEN", "ROLECALL_NODE_TOKEN"):
        monkeypatch.setenv(name, "the-same-for-both")
    with pytest.raises(
        SettingsError, match=r"^ROLECALL_TOKEN and ROLECALL_NODE_TOKEN have the same value; set"
    ) as refusal:
        settings.read_master()
    assert "the-same" not in str(refusal.value)
    monkeypatch.setenv("ROLECALL_METRICS_TOKEN", "the-same-for-both")
    monkeypatch.setenv("MASTER_ADDR", "m")
    monkeypatch.setenv("ROLE", "trainer")
    with pytest.raises(SettingsError, match="ROLECALL_NODE_TOKEN and ROLECALL_METRICS_TOKEN have the same value"):
        settings.read_node()


def test_a_secret_file_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_TOKEN_FILE", "/nowhere/token")
    with pytest.raises(SettingsError, match=r"ROLECALL_TOKEN_FILE=/nowhere/token: No such file"):
        settings.read_master()


def test_a_secret_file_that_holds_no_text_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe\x00")
    monkeypatch.setenv("ROLECALL_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(SettingsError, match=r"ROLECALL_TOKEN_FILE=.*/token is not a text file"):
        settings.read_master()


@pytest.mark.parametrize(("name", "value"), [("ROLECALL_PORT", "many"), ("ROLECALL_HEARTBEAT_S", "-1")])
def test_an_illegal_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    for token, secret in TOKENS.items():
        monkeypatch.setenv(token, secret)
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=name):
        settings.read_master()


def test_a_node_knows_its_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_NODE_TOKEN", TOKENS["ROLECALL_NODE_TOKEN"])
    monkeypatch.setenv("ROLE", "parameter-server")
    monkeypatch.setenv("MASTER_ADDR", "master.example")
    read = settings.read_node()
    assert read.role is Role.PARAMETER_SERVER
    assert read.master_url == "http://master.example:8080"


def test_a_masters_ipv6_address_stands_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_NODE_TOKEN", TOKENS["ROLECALL_NODE_TOKEN"])
    monkeypatch.setenv("ROLE", "trainer")
    monkeypatch.setenv("MASTER_ADDR", "fd00::7")
    assert settings.read_node().master_url == "http://[fd00::7]:8080"


@pytest.mark.parametrize(("role", "said"), [("", "ROLE is not set"), ("worker", "ROLE='worker' is unknown")])
def test_roles_are_listed_when_the_role_is_wrong(monkeypatch: pytest.MonkeyPatch, role: str, said: str) -> None:
    monkeypatch.setenv("ROLE", role)
    with pytest.raises(SettingsError, match=f"{said}; set it to one of: master, parameter-server, trainer"):
        settings.read_role()


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
    database, connection, closed = tmp_path / "rolecall.db", tmp_path / "rolecall/local.json", tmp_path / "closed"
    connection.parent.mkdir()
    for path in (database, connection, closed):
        path.write_text("secret")
        path.chmod(0o600 if path == closed else 0o644)
    found = readable_secret_files(database, closed, tmp_path / "missing")
    assert {path.name for path in found} == {
        "ROLECALL_NODE_TOKEN_FILE",
        "ROLECALL_TLS_KEY",
        database.name,
        "local.json",
    }
