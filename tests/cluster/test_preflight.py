"""`preflight` and `rolecall doctor` on real clusters, and what a network that is cut does to a job."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.jobs import long_job, past_step, workers
from tests.cluster.network import ADDRESSES, HUB, LEFT, RIGHT, ApartCluster, apart_cluster, await_nodes
from tests.conftest import Cluster

from rolecall.node.vitals import process_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
JOB: dict[str, Any] = {
    "workload": "reinforce",
    "roles": {"observer": 2},
    "params": {"environment": "CartPole-v1"},
    "max_restarts": 0,
}


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApartCluster]:
    with apart_cluster(tmp_path_factory.mktemp("apart")) as started:
        yield started


def bad(findings: list[dict[str, Any]], check: str) -> set[tuple[str, ...]]:
    """Whom the errors of one kind are about."""
    return {tuple(one["nodes"]) for one in findings if one["level"] == "error" and one["check"] == check}


def links(*pairs: tuple[str, str]) -> set[tuple[str, ...]]:
    """Both directions of each pair."""
    return {*pairs, *((b, a) for a, b in pairs)}


def test_it_examines_every_pair_while_other_jobs_run(cluster: Cluster, rows: Path) -> None:
    """All slots are taken, and the job that has them continues."""
    busy = cluster.submit(long_job(rows))
    cluster.until(busy, past_step(10))
    document = cluster.wait_for(cluster.submit({"workload": "preflight", "params": {"measure_s": 3}}), "succeeded")
    nodes = sorted(set(cluster.pids) - {"master"})
    assert sorted(worker["node"] for worker in document["attempts"][0]["workers"]) == nodes
    pairs = {tuple(sorted((a, b))) for a in nodes for b in nodes if a != b}
    for check in ("reach", "ping", "bandwidth"):
        found = [one for one in document["result"]["findings"] if one["check"] == check]
        assert {tuple(sorted(one["nodes"])) for one in found} == pairs
        assert len(found) == len(pairs)
    assert document["result"]["errors"] == 0
    assert cluster.job(busy)["state"] == "running"
    assert len(cluster.job(busy)["attempts"]) == 1


def test_a_nodes_preflight_has_what_names_it(cluster: Cluster) -> None:
    nodes = ["trainer-0", "trainer-1"]
    job = cluster.submit({"workload": "preflight", "params": {"nodes": nodes, "measure_s": 1}})
    cluster.wait_for(job, "succeeded")
    answer = cluster.client.get("/nodes/trainer-0/preflight").raise_for_status().json()
    assert {finding["check"] for finding in answer["findings"]} >= {"clock", "disk", "version"}
    assert answer["network"]["job"] == job
    assert all("trainer-0" in finding["nodes"] for finding in answer["network"]["findings"])
    assert {"ping", "bandwidth", "reach"} <= {finding["check"] for finding in answer["network"]["findings"]}
    assert answer["network"]["age_s"] < 60


def test_a_node_that_there_is_not_is_named_with_those_there_are(cluster: Cluster) -> None:
    answer = cluster.client.get("/nodes/trainer-9/preflight")
    assert answer.status_code == 404
    assert all(name in answer.json()["detail"] for name in ("trainer-9", "trainer-0", "parameter-server-0"))
    refused = cluster.client.post("/jobs", json={"workload": "preflight", "params": {"nodes": ["trainer-9"]}})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "params.nodes.0"


def test_a_node_whose_large_packets_are_lost_is_named_with_what_was_measured(apart: ApartCluster) -> None:
    with apart.network.narrowed(RIGHT):
        begin = time.monotonic()
        done = apart.run("doctor", "--json")
        assert time.monotonic() - begin < 75
    findings = json.loads(done.stdout)
    assert done.returncode == 1
    stalls = {frozenset(pair) for pair in bad(findings, "rpc")}
    assert stalls == {frozenset({"observer-1", other}) for other in ("trainer-0", "observer-0")}
    assert not bad(findings, "reach")
    measured = {tuple(one["nodes"]) for one in findings if one["check"] == "bandwidth"}
    assert measured == {("trainer-0", "observer-0")}
    assert "MTU" in next(one["remedy"] for one in findings if one["level"] == "error")


def test_an_open_network_is_found_open(apart: ApartCluster) -> None:
    done = apart.run("doctor", "--json")
    findings = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    pairs = {("trainer-0", "observer-0"), ("trainer-0", "observer-1"), ("observer-0", "observer-1")}
    assert {tuple(one["nodes"]) for one in findings if one["check"] == "bandwidth"} == pairs
    interfaces = {one["nodes"][0]: one["message"] for one in findings if one["check"] == "interface"}
    assert interfaces == {
        "trainer-0": f"switch ({ADDRESSES[HUB]})",
        "observer-0": f"eth0 ({ADDRESSES[LEFT]})",
        "observer-1": f"eth0 ({ADDRESSES[RIGHT]})",
    }


def test_a_wire_cut_between_two_nodes_is_a_line_with_both_their_names(apart: ApartCluster) -> None:
    """Both reach rank 0's store, where they meet: without the probes, RPC would hang."""
    with apart.network.cut(LEFT, from_address=ADDRESSES[RIGHT]):
        begin = time.monotonic()
        document = apart.wait_for(apart.submit(JOB), "failed", 30)
        assert time.monotonic() - begin < 15
        line = document["reason"].partition("\n")[0]
        assert re.search(
            rf"UnreachablePeer: node observer-0 \({ADDRESSES[LEFT]}, eth0\) can't reach node observer-1 at "
            rf"{ADDRESSES[RIGHT]}:\d+: timed out after 5 s; open the gang ports "
            r"\(net.ipv4.ip_local_port_range: \d+ to \d+\) between the nodes in both directions "
            r"\(1 more link is unreachable\)$",
            line,
        ), line
        done = apart.run("doctor", "--json")
    assert done.returncode == 1
    findings = json.loads(done.stdout)
    assert bad(findings, "reach") == links(("observer-0", "observer-1"))
    assert all(one["remedy"] for one in findings if one["level"] != "ok")
    shown = apart.client.get("/nodes/observer-1/preflight").json()["network"]["findings"]
    assert bad(shown, "reach") == links(("observer-0", "observer-1"))


def test_a_node_that_is_cut_off_ends_its_own_workers(apart: ApartCluster) -> None:
    """The gang continues without this observer. Its process would hold its GPU for minutes, waiting for an agent."""
    job = apart.submit(JOB | {"params": JOB["params"] | {"env_steps": 10**9}})
    lonely = workers(apart.until(job, past_step(1)))["observer-0"]
    with apart.network.isolated(LEFT):
        deadline = time.monotonic() + 60
        while process_state(lonely["pid"]) not in {None, "Z"}:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert apart.job(job)["state"] == "running"
    assert "could not reach its master" in (apart.network.data / "observer-0.log").read_text()
    await_nodes(apart.client, apart.network)


def test_a_firewall_that_lets_only_the_control_port_through(apart: ApartCluster) -> None:
    with apart.network.cut(RIGHT):
        begin = time.monotonic()
        document = apart.wait_for(apart.submit(JOB), "failed", 30)
        assert time.monotonic() - begin < 15
        refusal = f"node observer-1 ({ADDRESSES[RIGHT]}, eth0) can't reach node trainer-0 at {ADDRESSES[HUB]}:"
        assert f"UnreachablePeer: {refusal}" in document["reason"]
        table = apart.run("doctor")
    assert table.returncode == 1
    cut = re.findall(r"^error +(.*), reach: ", table.stdout, re.MULTILINE)
    assert {tuple(one.split(" - ")) for one in cut} == links(("trainer-0", "observer-1"), ("observer-0", "observer-1"))
    assert "open the gang ports" in table.stdout
