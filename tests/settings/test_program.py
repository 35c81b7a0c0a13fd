import pytest

from rolecall.settings.master import read_master
from rolecall.settings.node import read_node
from rolecall.spec.errors import SettingsError


def test_equal_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROLECALL_TOKEN", "ROLECALL_NODE_TOKEN"):
        monkeypatch.setenv(name, "the-same-for-both")
    with pytest.raises(
        SettingsError, match=r"^ROLECALL_TOKEN and ROLECALL_NODE_TOKEN have the same value; set"
    ) as refusal:
        read_master()
    assert "the-same" not in str(refusal.value)
    monkeypatch.setenv("ROLECALL_METRICS_TOKEN", "the-same-for-both")
    monkeypatch.setenv("MASTER_ADDR", "m")
    monkeypatch.setenv("ROLE", "trainer")
    with pytest.raises(SettingsError, match="ROLECALL_NODE_TOKEN and ROLECALL_METRICS_TOKEN have the same value"):
        read_node()
