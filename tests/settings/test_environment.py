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


_SIZE = "is not a valid value (valid: a number of bytes, or a size such as 100GiB)"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ROLECALL_PORT", "many", "'many' must be an integer (valid: an integer from 0 to 65,535)"),
        ("ROLECALL_HEARTBEAT_S", "-1", "'-1' must be greater than 0 (valid: a number > 0 and ≤ 30)"),
        ("ROLECALL_STANDBY", "maybe", "'maybe' must be true or false"),
        ("ROLECALL_STANDBY", "postgresql://u:secret@h/db", "'postgresql://***@h/db' must be true or false"),
        ("ROLECALL_LOG_FORMAT", "xml", "'xml' is not a valid value (valid: text, json)"),
        (
            "ROLECALL_LOG_LEVEL",
            "INFO",
            "'INFO' is not a valid value; did you mean 'info'? (valid: debug, info, warning, error)",
        ),
        (
            "ROLECALL_LOG_FORMAT",
            f"\x1b{'x' * 300}",
            f"'\\x1b{'x' * 98}…' is not a valid value (valid: text, json)",
        ),
        ("ROLECALL_MAX_JOB_BYTES", "lots", f"'lots' {_SIZE}"),
        ("ROLECALL_MAX_JOB_BYTES", "5 heaps", f"'5 heaps' {_SIZE}"),
        (
            "ROLECALL_WEBHOOK_NETWORKS",
            "10.1.0.0/16,foo",
            "'foo' must be a network (valid: a network, such as 10.1.0.0/16)",
        ),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "collector",
            "it is not a valid value (valid: an http or https URL, such as http://collector:4318)",
        ),
    ],
)
def test_an_illegal_value_is_named_with_the_valid_ones(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    for token, secret in TOKENS.items():
        monkeypatch.setenv(token, secret)
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        read_master()
    assert str(caught.value) == f"{name}: {said}"


@pytest.mark.parametrize("name", ["ROLECALL_TOKEN", "ROLECALL_NODE_TOKEN", "ROLECALL_METRICS_TOKEN"])
def test_a_short_secret_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for token, secret in (TOKENS | {name: "hunter2hunter"}).items():
        monkeypatch.setenv(token, secret)
    with pytest.raises(SettingsError) as caught:
        read_master()
    assert str(caught.value).startswith(f"{name}: it must have at least 16 characters, not 13 (valid:")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("", "ROLE is not set"),
        ("worker", "ROLE='worker' is unknown"),
        ("traner", r"ROLE='traner' is unknown \(did you mean 'trainer'\?\)"),
    ],
)
def test_roles_are_listed_when_the_role_is_wrong(monkeypatch: pytest.MonkeyPatch, role: str, said: str) -> None:
    monkeypatch.setenv("ROLE", role)
    with pytest.raises(SettingsError, match=f"{said}; set it to one of: master, parameter-server, trainer"):
        read_role()
