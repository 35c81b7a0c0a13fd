import pytest

TOKENS = {"ROLECALL_TOKEN": "u" * 16, "ROLECALL_NODE_TOKEN": "n" * 16}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROLE", "MASTER_ADDR", "ROLECALL_METRICS_TOKEN", *TOKENS):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(f"{name}_FILE", raising=False)
