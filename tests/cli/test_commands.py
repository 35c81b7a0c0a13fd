"""Output and exit codes of the commands against a real cluster."""

import fcntl
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.conftest import ROLECALL, Cluster

from .command import run_with as run


def run_alone(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, as a user does."""
    command = [*ROLECALL, *arguments]
    return subprocess.run(command, env=cluster.environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("command", ["jobs", "nodes", "workloads"])
def test_lists_print_json(cluster: Cluster, command: str) -> None:
    done = run(cluster, command, "--json")
    assert done.code == 0, done.err
    assert command in json.loads(done.out)


def test_nodes_shows_every_node(cluster: Cluster) -> None:
    names = set(cluster.pids) - {"master"}
    rows = run(cluster, "nodes").out.splitlines()[1 : 1 + len(names)]  # Findings may follow.
    assert {row.split()[0] for row in rows} == names


def test_a_workload_is_described(cluster: Cluster) -> None:
    done = run(cluster, "workloads", "embedding-ddp")
    assert "parameter-server" in done.out


def test_an_unknown_job_is_not_found(cluster: Cluster) -> None:
    done = run_alone(cluster, "show", "nothing")
    assert done.returncode == run(cluster, "show", "nothing").code == 4


@pytest.mark.parametrize("job", ["", "..", "a/../b", "a?b"])
def test_what_is_no_id_is_not_found(cluster: Cluster, job: str) -> None:
    assert run(cluster, "show", job).code == 4


def test_a_name_is_shown_as_it_was_given(cluster: Cluster) -> None:
    data = {"train": "none.csv", "label": "y", "categorical": ["a"]}
    job = {"workload": "embedding-ddp", "name": "[/] [red]", "params": {"data": data}, "max_restarts": 0}
    submitted = run(cluster, "submit", "-", given=json.dumps(job))
    assert "[/] [red]" in run(cluster, "jobs").out
    assert "[/] [red]" in run(cluster, "show", submitted.out.strip()).out


def test_an_unknown_workload_is_refused_with_the_nearest_name(cluster: Cluster) -> None:
    done = run(cluster, "submit", "-", given='{"workload": "embeding-ddp"}')
    assert done.code == 5
    assert "did you mean 'embedding-ddp'" in done.err


def test_a_missing_file_is_wrong_usage(cluster: Cluster) -> None:
    assert run(cluster, "submit", "no-such-file.json").code == 2


def test_a_silent_master_is_unreachable(cluster: Cluster) -> None:
    assert run(cluster, "jobs", ROLECALL_URL="http://127.0.0.1:9").code == 6


def test_an_error_without_a_cluster_and_a_url(cluster: Cluster, tmp_path: Path) -> None:
    nothing = {"ROLECALL_URL": "", "ROLECALL_TOKEN": "", "XDG_CONFIG_HOME": str(tmp_path)}
    done = run(cluster, "jobs", **nothing)
    assert done.code == 6
    assert "no cluster of `rolecall local` is running on this machine" in done.err


def test_two_clusters_do_not_share_a_folder(cluster: Cluster) -> None:
    done = run_alone(cluster, "local", "--port", "0", "--data", str(cluster.data))
    assert done.returncode == 1
    assert "choose another --data" in done.stderr
    # Of two reasons, the folder's says that a cluster is there.
    done = run_alone(cluster, "local", "--port", cluster.url.rpartition(":")[2], "--data", str(cluster.data))
    assert "use its cluster" in done.stderr


def test_a_url_without_a_scheme_is_wrong_usage(cluster: Cluster) -> None:
    done = run(cluster, "jobs", ROLECALL_URL="127.0.0.1:8080")
    assert done.code == 2
    assert "write http://127.0.0.1:8080" in done.err


def test_help_fills_the_lines_of_each_paragraph(cluster: Cluster) -> None:
    said = run(cluster, "local", "--help", COLUMNS="100").out
    paragraph = said[said.index("Prints `ready") : said.index("╭")]
    assert len(paragraph.splitlines()[0].strip()) > 80, said
    assert [len(line.strip()) > 60 for line in paragraph.strip().splitlines()][:-1] == [True], said


def test_a_wrong_token_is_unauthorized_and_named(cluster: Cluster) -> None:
    done = run(cluster, "jobs", ROLECALL_TOKEN="a-wrong-token-for-sure")
    assert done.code == 7
    assert "ROLECALL_TOKEN" in done.err


def test_the_token_may_come_from_a_file(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{cluster.token}\n")
    assert run(cluster, "jobs", ROLECALL_TOKEN="", ROLECALL_TOKEN_FILE=str(tmp_path / "token")).code == 0
    done = run(cluster, "jobs", ROLECALL_TOKEN="", ROLECALL_TOKEN_FILE=str(tmp_path / "none"))
    assert done.code == 2
    assert "No such file" in done.err


def test_local_keeps_its_files_private(cluster: Cluster) -> None:
    made = [path for path in cluster.data.rglob("*") if path.name != "local.log" and not path.is_symlink()]
    assert len(made) > 10
    assert [path for path in made if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_local_leaves_no_process_and_locks_its_folder_until_its_last_program_has_ended(
    start_cluster: Callable[..., Cluster], number: int
) -> None:
    cluster = start_cluster("--trainers", "0", "--parameter-servers", "0")  # The master's node stays.
    family = psutil.Process(cluster.process.pid).children(recursive=True)
    programs = [psutil.Process(pid) for pid in cluster.pids.values()]
    assert len(programs) == 2
    with (cluster.data / "lock").open("ab") as file:
        cluster.process.send_signal(number)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert number == signal.SIGKILL or not [program for program in programs if program.is_running()]
    cluster.process.wait(timeout=10)
    _, alive = psutil.wait_procs(family, timeout=3)
    assert not alive
