"""Commands that would send their token across a network in clear text. There is none, so that they end at once."""

import json
import os
import subprocess

import pytest
from tests.conftest import ROLECALL
from tests.prerequisites import require_namespaces

pytestmark = pytest.mark.slow
ELSEWHERE = "http://192.0.2.1:8080"


def run_apart(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command where no network is."""
    require_namespaces("--net")
    given = {"ROLECALL_URL": ELSEWHERE, "ROLECALL_TOKEN": "a-token-of-the-tests"}
    command = ["unshare", "--net", *ROLECALL, *arguments]
    return subprocess.run(command, env=os.environ | given, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_command_warns_once_and_not_in_its_output(options: list[str]) -> None:
    done = run_apart("jobs", *options)
    warning, failure = done.stderr.splitlines()
    assert done.stdout == ""
    assert warning == (
        f"warning: calls to {ELSEWHERE} leave this machine in clear text, and contain the token; "
        "set ROLECALL_TLS_CERT and ROLECALL_TLS_KEY on the master, and ROLECALL_TLS_CA here"
    )
    assert "Network is unreachable" in failure


def test_doctor_reports_it_with_a_remedy() -> None:
    done = run_apart("doctor", "--json")
    (found,) = [one for one in json.loads(done.stdout) if one["check"] == "tls"]
    assert (found["nodes"], found["level"]) == (["this shell"], "warning")
    assert ELSEWHERE in found["message"]
    assert "ROLECALL_TLS_CA" in found["remedy"]
    assert "warning" not in done.stderr
