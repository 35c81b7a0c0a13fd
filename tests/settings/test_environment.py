import pytest
from tests.settings.conftest import TOKENS

from rolecall.settings.environment import read_role
from rolecall.settings.master import read_master
from rolecall.settings.node import read_node
from rolecall.spec.errors import SettingsError


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="ROLECALL_NODE_TOKEN is not set; set it, or ROLECALL_NODE_TOKEN_FILE"):
        read_master()
    monkeypatch.setenv("ROLE", "trainer")
    with pytest.raises(SettingsError, match="MASTER_ADDR is not set"):
        read_node()


@pytest.mark.parametrize(("name", "value"), [("ROLECALL_PORT", "many"), ("ROLECALL_HEARTBEAT_S", "-1")])
def test_an_illegal_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    for token, secret in TOKENS.items():
        monkeypatch.setenv(token, secret)
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=name):
        read_master()


@pytest.mark.parametrize(("role", "said"), [("", "ROLE is not set"), ("worker", "ROLE='worker' is unknown")])
def test_roles_are_listed_when_the_role_is_wrong(monkeypatch: pytest.MonkeyPatch, role: str, said: str) -> None:
    monkeypatch.setenv("ROLE", role)
    with pytest.raises(SettingsError, match=f"{said}; set it to one of: master, parameter-server, trainer"):
        read_role()
