# pyright: standard
"""The stack of `compose.yaml` for real: images, containers, networks, tokens, and what may befall them."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.cluster.jobs import past_step, workers
from tests.deploy.manifests import ROOT
from tests.deploy.stack import BASE_IMAGE, PROJECT, Stack, docker, image, running_stack

from rolecall import __version__
from rolecall.spec.role import Role

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

EXAMPLES = sorted(ROOT.glob("examples/*.json"))
GANG = f"{PROJECT}_gang"
UID = "10001"
PROMETHEUS = "rolecall-ci-prometheus"
PATIENCE_S = 120


@pytest.fixture(scope="module")
def stack(images: None) -> Iterator[Stack]:
    """One stack for all tests; each leaves it as it found it."""
    with running_stack(ROLECALL_CPU_SLOTS="8") as started:
        yield started


def test_images_are_of_one_codebase_and_one_set_of_layers(images: None, capsys: pytest.CaptureFixture[str]) -> None:
    layers = []
    for role in Role:
        (found,) = json.loads(docker("image", "inspect", image(role)))
        layers.append(found["RootFS"]["Layers"])
        with capsys.disabled():
            print(f"\n{image(role)}: {found['Size'] / 1e9:.2f} GB", end="")
        config = found["Config"]
        assert f"ROLE={role}" in config["Env"]
        assert config["User"] == f"{UID}:{UID}"
        assert config["Healthcheck"]["Test"] == ["CMD", "healthcheck"]
        assert config["Labels"]["org.opencontainers.image.title"] == f"rolecall-{role}"
        assert config["Labels"]["org.opencontainers.image.version"] == __version__
    assert all(one == layers[0] for one in layers)


def test_images_hold_no_tools_and_no_secrets(images: None) -> None:
    tools = "for tool in gcc cc make git hatchling; do command -v $tool; done"
    files = "find /root -type f -path '*cache*'; find / -xdev -name .git"
    found = docker(
        "run", "--rm", "--user", "0", "--entrypoint", "sh", image("trainer"), "-c", f"{tools}; {files}", check=False
    )
    assert found.split() == []
    installed = docker("run", "--rm", image("trainer"), "sh", "-c", "ls /opt/rolecall/venv/bin; ls /run/secrets/*")
    assert "rolecall" in installed.split()
    assert "pip" not in installed.split()
    assert "token" not in installed


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"ROLE": ""}, "ROLE is not set; set it to one of: master, parameter-server, trainer, stage, observer"),
        ({"ROLE": "teacher"}, "ROLE='teacher' is unknown"),
        ({"MASTER_ADDR": "somewhere"}, "ROLECALL_NODE_TOKEN is not set; set it, or ROLECALL_NODE_TOKEN_FILE"),
        ({"ROLECALL_NODE_TOKEN_FILE": "/run/secrets/node/token"}, "No such file or directory; mount the file"),
    ],
)
def test_a_wrong_environment_ends_a_container_with_one_line(images: None, variables: dict[str, str], said: str) -> None:
    given = [option for name, value in variables.items() for option in ("--env", f"{name}={value}")]
    done = _run("docker", "run", "--rm", *given, image("trainer"))
    assert done.returncode == os.EX_CONFIG
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_every_example_succeeds(stack: Stack) -> None:
    """By some steps of each: what they learn is seen in tests/cluster."""
    assert len(EXAMPLES) == 5
    jobs = [_submit_with_curl(stack, example.name) for example in EXAMPLES]
    for job in jobs:
        document = stack.wait_for(job, "succeeded", timeout=900)
        assert len(document["attempts"]) == 1, document["attempts"]
        artifacts = stack.client.get(f"/jobs/{job}/artifacts").raise_for_status().json()["artifacts"]
        assert "model.zip" in {artifact["name"] for artifact in artifacts}


def _submit_with_curl(stack: Stack, example: str) -> str:
    request = json.loads((ROOT / "examples" / example).read_text())
    request["params"] |= {"target_return": 50} if request["workload"] == "reinforce" else {"max_steps": 10}
    if "text" in request["params"]:
        request["params"]["text"] |= {"test": None, "validation": 0.005}  # Their losses take longer than the steps.
    command = ["curl", "-sSf", "-X", "POST", f"{stack.client.base_url}/jobs", "-d", json.dumps(request)]
    headers = [f"Authorization: Bearer {stack.token}", "Content-Type: application/json"]
    options = [option for header in headers for option in ("-H", header)]
    done = _run(*command, *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["id"]


def test_the_job_of_the_readme_can_be_submitted(stack: Stack) -> None:
    (given,) = re.findall(r"^docker compose exec (.*) --follow$", (ROOT / "README.md").read_text(), re.MULTILINE)
    said = stack.compose("exec", "-T", *given.split(), "--dry-run")
    assert "trainer-0" in said


def test_the_page_has_the_scripts_that_git_ignores(stack: Stack) -> None:
    for name in ("htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css"):
        assert stack.client.get(f"/ui/static/vendor/{name}").raise_for_status().content, name


def test_nodes_are_called_as_their_containers(stack: Stack) -> None:
    assert list(stack.nodes("trainer")) == stack.containers("trainer")
    assert list(stack.nodes("master")) == ["master"]


def test_commands_find_the_master_in_its_own_container(stack: Stack) -> None:
    found = json.loads(stack.compose("exec", "-T", "master", "rolecall", "nodes", "--json"))
    assert len(found["nodes"]) == 8


def test_the_doctor_is_content(stack: Stack) -> None:
    said = stack.compose("exec", "-T", "master", "rolecall", "doctor", "--all")
    for trainer in stack.containers("trainer"):
        assert trainer in said


def test_workers_meet_on_the_network_of_the_gang(stack: Stack) -> None:
    (network,) = json.loads(docker("network", "inspect", GANG))
    own = {one["Name"]: one["IPv4Address"].partition("/")[0] for one in network["Containers"].values()}
    for role in Role:
        for node in stack.nodes(role).values():
            name = f"{PROJECT}-master-1" if role is Role.MASTER else node["spec"]["name"]
            assert node["spec"]["address"] == own[name]


def test_containers_can_write_where_they_may_and_nowhere_else(stack: Stack) -> None:
    trial = "id -u; touch /var/lib/rolecall/x /tmp/x /dev/shm/x && rm /var/lib/rolecall/x && touch /opt/x"
    said = stack.compose("exec", "-T", "trainer", "sh", "-c", f"({trial}) 2>&1 || true")
    assert said.split("\n")[0] == UID
    assert said.strip().endswith("/opt/x': Read-only file system")
    ports = stack.compose("exec", "-T", "trainer", "cat", "/proc/sys/net/ipv4/ip_local_port_range")
    assert ports.split() == ["40000", "49999"]


def test_tokens_are_made_and_never_printed(stack: Stack) -> None:
    node = stack.compose("exec", "-T", "trainer", "cat", "/run/secrets/node/token")
    metrics = stack.compose("exec", "-T", "trainer", "cat", "/run/secrets/metrics/token")
    made = {stack.token, node, metrics}
    assert [len(token) for token in made] == [64, 64, 64]
    printed = stack.compose("logs", "--no-color")
    assert not any(token in printed for token in made)


def test_a_node_with_another_token_is_refused(stack: Stack) -> None:
    variables = {"MASTER_ADDR": "rolecall-master", "ROLECALL_NODE_TOKEN": "not-the-master's-token"}
    given = [option for name, value in variables.items() for option in ("--env", f"{name}={value}")]
    done = _run("docker", "run", "--rm", "--network", GANG, *given, image("trainer"))
    assert done.returncode == os.EX_CONFIG
    assert "does not accept ROLECALL_NODE_TOKEN" in done.stderr.splitlines()[-1]


def test_nodes_added_while_it_runs_are_used_and_drain_when_taken_away(stack: Stack) -> None:
    stack.up("--scale", "trainer=4")
    _await(lambda: len(stack.nodes("trainer")) == 4, "four trainers")
    job = stack.submit(_long_job(trainers=4))
    before = stack.until(job, past_step(20), PATIENCE_S)
    assert {worker["node"] for worker in workers(before).values()} >= set(stack.containers("trainer"))
    stack.up("--scale", "trainer=2")
    after = stack.until(job, lambda one: len(one["attempts"]) == 2 and past_step(0)(one), PATIENCE_S)
    assert "drain" in after["attempts"][0]["cause"]
    trainers = {worker["node"] for name, worker in workers(after).items() if name.startswith("trainer")}
    assert trainers == set(stack.containers("trainer"))
    assert after["progress"]["step"] > before["progress"]["step"], "it went on from its checkpoint"
    assert set(stack.nodes("trainer")) == trainers
    _cancel(stack, job)


def test_a_killed_workers_container_costs_one_attempt(stack: Stack) -> None:
    job = stack.submit(_long_job(max_steps=200))
    stack.until(job, past_step(20), PATIENCE_S)
    victim = stack.containers("trainer")[-1]
    docker("kill", victim)
    after = stack.wait_for(job, "succeeded", PATIENCE_S)
    assert len(after["attempts"]) == 2
    assert victim not in {worker["node"] for worker in workers(after).values()}
    docker("start", victim)
    _await(lambda: victim in stack.nodes("trainer"), f"{victim} is back")


def test_a_container_that_crashes_is_started_again(stack: Stack) -> None:
    victim = stack.containers("observer")[-1]
    first_incarnation = stack.nodes("observer")[victim]["incarnation"]
    (before,) = json.loads(docker("inspect", victim))
    os.kill(before["State"]["Pid"], signal.SIGKILL)
    _await(lambda: _incarnation(stack, victim) not in {None, first_incarnation}, f"{victim} has registered anew")
    (after,) = json.loads(docker("inspect", victim))
    assert after["RestartCount"] == before["RestartCount"] + 1


def _incarnation(stack: Stack, observer: str) -> str | None:
    """The id of a live node's current incarnation."""
    node = stack.nodes("observer").get(observer)
    return node["incarnation"] if node else None


def test_jobs_outlive_a_killed_master(stack: Stack) -> None:
    # Of a workload without driver ranks, which live in the master's container.
    example = json.loads((ROOT / "examples/rnn-lm.json").read_text())
    job = stack.submit(example | {"params": example["params"] | {"max_steps": 80}})
    stack.until(job, past_step(20), PATIENCE_S)
    docker("kill", f"{PROJECT}-master-1")
    docker("start", f"{PROJECT}-master-1")
    stack.find_master()
    stack.await_up(60)
    after = stack.wait_for(job, "succeeded", 300)
    assert len(after["attempts"]) == 1


def test_a_node_behind_a_partition_is_lost_and_comes_back(stack: Stack) -> None:
    job = stack.submit(_long_job())
    stack.until(job, past_step(20), PATIENCE_S)
    victim = stack.containers("trainer")[-1]
    docker("network", "disconnect", GANG, victim)
    after = stack.until(job, lambda one: len(one["attempts"]) == 2 and past_step(20)(one), PATIENCE_S)
    assert victim not in {worker["node"] for worker in workers(after).values()}
    docker("network", "connect", GANG, victim)
    _await(lambda: victim in stack.nodes("trainer"), f"{victim} is back")
    _cancel(stack, job)
    both = stack.submit(_long_job(max_steps=50))
    placed = workers(stack.wait_for(both, "succeeded", PATIENCE_S))
    assert victim in {worker["node"] for worker in placed.values()}


def test_a_job_goes_on_when_the_stack_is_taken_down_and_brought_up_again(stack: Stack) -> None:
    job = stack.submit(_long_job(max_steps=200))
    before = stack.until(job, past_step(50), PATIENCE_S)
    stack.compose("down")
    stack.up()
    # It can have ended meanwhile: the engine checks the health of the containers only every few seconds.
    after = stack.wait_for(job, "succeeded", PATIENCE_S)
    assert after["progress"]["spent"]["resumed"] > before["progress"]["spent"]["steps"], "it resumed"
    assert [attempt["state"] for attempt in after["attempts"]] == ["paused", "succeeded"], "a drain costs no restart"


def test_prometheus_finds_the_master_and_every_node(stack: Stack) -> None:
    base = BASE_IMAGE or "python:3.12-slim-bookworm"
    recipe = f"FROM {base}\nRUN apt-get update && apt-get install --yes --no-install-recommends prometheus\n"
    recipe += 'RUN install --directory --owner nobody /prometheus\nUSER nobody\nENTRYPOINT ["prometheus"]\n'
    subprocess.run(["docker", "build", "--tag", PROMETHEUS, "-"], input=recipe, text=True, check=True)
    own: dict[str, Any] = {"PROMETHEUS_IMAGE": PROMETHEUS, "PUBLISH_PROMETHEUS": "127.0.0.1:"}
    stack.compose("up", "--detach", "--no-deps", "prometheus", **own)
    address = stack.compose("port", "prometheus", "9090").strip()
    with httpx.Client(base_url=f"http://{address}", timeout=10) as prometheus:
        _await(lambda: len(_up(prometheus)) == 9 and set(_up(prometheus)) == {"1"}, "all nine targets")
    stack.compose("rm", "--force", "--stop", "prometheus", **own)


def _up(prometheus: httpx.Client) -> list[str]:
    try:
        found = prometheus.get("/api/v1/query", params={"query": "up"}).json()["data"]["result"]
    except (httpx.TransportError, json.JSONDecodeError, KeyError):  # It answers in plain text until it is ready.
        return []
    return [one["value"][1] for one in found]


def _long_job(*, trainers: int = 2, max_steps: int = 1_000_000) -> dict[str, Any]:
    """The example, for as long as it takes; a checkpoint every 20 steps."""
    example = json.loads((ROOT / "examples/embedding-ddp.json").read_text())
    params = example["params"] | {"epochs": 100_000, "max_steps": max_steps, "checkpoint_every_steps": 20}
    params.pop("early_stopping", None)
    return example | {"params": params, "roles": {"parameter-server": 1, "trainer": trainers}}


def _cancel(stack: Stack, job: str) -> None:
    stack.client.post(f"/jobs/{job}/cancel").raise_for_status()
    stack.wait_for(job, "cancelled")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)


def _await(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.2)
