# pyright: reportPrivateUsage=false
"""Programs of neighboring releases together: a rolling upgrade, and the way back.

`v0_1_0` has what release 0.1.0 sent and stored, recorded from a run of it. A newer release is played by messages with
fields and values that this one doesn't know.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from tests.master.harness import (
    NODE_TOKEN,
    Node,
    bearer,
    failure,
    line,
    make_settings,
    one_trainer,
    serving,
    still_master,
)
from tests.master.harness import make_node as make_spec

from rolecall import __version__
from rolecall.master import catalogue
from rolecall.master.progress_lines import parse_line
from rolecall.node.reconcile import Actual, Ask, Key, actions
from rolecall.spec.errors import SettingsError, WorkloadError
from rolecall.spec.finding import Finding, Level
from rolecall.spec.fork import FORK_REPLY, ForkRequest
from rolecall.spec.node import NodeDocument, NodeSpec
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.role import Role
from rolecall.spec.state import StopMode, WorkerState
from rolecall.spec.wire import ClusterInfo, Desired, Heartbeat, Registered
from rolecall.worker.main import _legal_params

RECORDED = Path(__file__).parent / "v0_1_0"
KINDS = {
    "register": NodeSpec,
    "registered": Registered,
    "surroundings": ClusterInfo,
    "heartbeat": Heartbeat,
    "desired": Desired,
    "desired_stopping": Desired,
    "fork_request": ForkRequest,
    "checkpoint_manifest": CheckpointManifest,
}


def recorded(name: str) -> dict[str, Any]:
    """A message of release 0.1.0."""
    return json.loads((RECORDED / f"{name}.json").read_text())


STORED = json.loads((RECORDED / "params.json").read_text())
"""Complete parameters as release 0.1.0 validated and stored them."""
REFUSED = {
    "reinforce, tutorial, wait_for": "wait_for must be 1 with protocol: tutorial",
    "reinforce, tutorial, normalized rewards": "normalize_rewards must be false with protocol: tutorial",
    "reinforce, tutorial, own vectorization": 'environment.vectorization must be "loop" with protocol: tutorial',
    "reinforce, tutorial, coefficients": "algorithm.value_coefficient does not fit protocol: tutorial",
}
"""The requests that this release no longer runs, with the reasons."""


def lacks(new: Any, old: Any, path: str = "") -> list[str]:
    """The fields of the older message that the newer one has no more: an older program would miss them."""
    if isinstance(old, dict) and isinstance(new, dict):
        olds, news = cast(dict[str, Any], old), cast(dict[str, Any], new)
        missing = [f"{path}.{name}" for name in olds if name not in news]
        return missing + [
            one for name in olds if name in news for one in lacks(news[name], olds[name], f"{path}.{name}")
        ]
    if isinstance(old, list) and isinstance(new, list):
        pairs = zip(cast(list[Any], new), cast(list[Any], old), strict=True)
        return [one for i, (after, before) in enumerate(pairs) for one in lacks(after, before, f"{path}.{i}")]
    return []


def has(new: Any, old: Any) -> bool:
    """True if the newer value is the older one, but for new fields."""
    if isinstance(old, dict) and isinstance(new, dict):
        olds, news = cast(dict[str, Any], old), cast(dict[str, Any], new)
        return all(name in news and has(news[name], olds[name]) for name in olds)
    if isinstance(old, list) and isinstance(new, list):
        news, olds = cast(list[Any], new), cast(list[Any], old)
        return len(news) == len(olds) and all(map(has, news, olds))
    return new == old


@pytest.mark.parametrize("name", KINDS)
def test_the_previous_releases_messages_are_read_and_ours_have_all_their_fields(name: str) -> None:
    old = recorded(name)
    value = KINDS[name].model_validate_json(json.dumps(old))
    assert lacks(value.model_dump(mode="json"), old) == []
    assert KINDS[name].model_validate(value.model_dump(mode="json")) == value


def test_a_nodes_incarnation_has_the_previous_releases_name_too() -> None:
    node = {"spec": recorded("register"), "alive": True, "heartbeat_age_s": 0.5}
    document = NodeDocument.model_validate(node | {"life": "0a1b2c"})
    shown = document.model_dump(mode="json")
    assert (shown["incarnation"], shown["life"]) == ("0a1b2c", "0a1b2c")
    assert NodeDocument.model_validate(shown) == document


def test_the_previous_releases_lines_are_read() -> None:
    progress = (RECORDED / "progress.jsonl").read_bytes()
    assert [parse_line(raw).kind for raw in progress.splitlines(keepends=True)] == [
        "forked",
        "rendezvous",
        "joined",
        "first_step",
        "step",
        "event",
        "result",
    ]
    replies = [FORK_REPLY.validate_json(text) for text in (RECORDED / "fork_replies.jsonl").read_text().splitlines()]
    assert [reply.kind for reply in replies] == ["ready", "forked", "refused", "exited"]


@pytest.mark.slow
async def test_a_node_and_a_database_of_the_previous_release_continue(tmp_path: Path) -> None:
    """The master was upgraded, its node was not: the running job ends well, and the waiting one has its place."""
    with closing(sqlite3.connect(tmp_path / "rolecall.db")) as database:
        database.executescript((RECORDED / "database.sql").read_text())

    async with serving(make_settings(tmp_path)) as client:
        beat = recorded("heartbeat") | {"seen": -1}
        answer = await client.internal("POST", "/nodes/trainer-0/heartbeat", json=beat)
        assert answer.status_code == 200, answer.text
        assert lacks(answer.json(), recorded("desired")) == []
        states = {job["name"]: job["state"] for job in (await client.user("GET", "/jobs")).json()["jobs"]}
        assert states == {"runs": "running", "waits": "queued", "paused": "paused", "done": "succeeded"}
        node = Node(client, NodeSpec.model_validate(recorded("register")))
        workers = await node.workers(2)
        assert {worker.launch.master_addr for worker in workers} == {node.spec.address}
        assert (await client.checkpoint(workers[0].launch.job, 1, 7)).status_code == 201
        for worker in workers:
            await node.say(worker, WorkerState.SUCCEEDED, exit_code=0)
        await client.until(workers[0].launch.job, "succeeded")
        await Node(client, make_spec("trainer-1", Role.TRAINER, 9, boot="m9", cores=16)).register()
        assert (await client.user("GET", "/metrics")).status_code == 200


def test_what_the_previous_release_stored_is_run_with_the_same_values() -> None:
    installed = catalogue.load()
    for name in STORED.keys() - REFUSED.keys():
        workload, params = installed.get(STORED[name]["workload"]), STORED[name]["params"]
        run = _legal_params(workload, params).model_dump(mode="json")
        assert has(run, params), name


@pytest.mark.parametrize("name", REFUSED)
def test_what_this_release_no_longer_runs_ends_with_a_reason_in_one_line(name: str) -> None:
    workload = catalogue.load().get(STORED[name]["workload"])
    with pytest.raises(WorkloadError) as raised:
        _legal_params(workload, STORED[name]["params"])
    (line,) = str(raised.value).splitlines()
    assert f"refuses parameters that another version accepted: params: {REFUSED[name]}" in line
    assert not raised.value.retryable


def test_a_newer_releases_parameter_is_refused_with_its_name() -> None:
    workload = catalogue.load().get("rnn-lm")
    newer = {"hyper": 1, "text": STORED["rnn-lm"]["params"]["text"] | {"language": "\n\nde"}}
    with pytest.raises(WorkloadError, match=r"^[^\n]*params.text.language: Extra[^\n]*params.hyper: Extra[^\n]*$"):
        _legal_params(workload, STORED["rnn-lm"]["params"] | newer)


async def test_a_newer_releases_database_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "rolecall.db")) as database:
        database.executescript((RECORDED / "database.sql").read_text())
        database.execute("UPDATE alembic_version SET version_num = 'r9999'")
        database.commit()
    with pytest.raises(SettingsError, match=r"newer release of Rolecall migrated the database \(.*r9999.*restore"):
        async with still_master(tmp_path):
            pass


async def test_a_stored_job_that_is_no_longer_legal_stops_no_pass_and_ends_with_its_workers_reason(
    tmp_path: Path,
) -> None:
    """It is placed, retried and resumed as it was stored: only a worker can say that it can't run it."""
    stored = {"steps": 0, "left": True}
    with closing(sqlite3.connect(tmp_path / "rolecall.db")) as database:
        database.executescript((RECORDED / "database.sql").read_text())
        change = "UPDATE jobs SET params = ?, roles = '{\"trainer\":1}' WHERE name IN ('waits', 'paused')"
        database.execute(change, (json.dumps(stored),))
        database.commit()

    async with serving(make_settings(tmp_path)) as client:
        ids = {job["name"]: job["id"] for job in (await client.user("GET", "/jobs")).json()["jobs"]}
        node = Node(client, make_spec("trainer-1", Role.TRAINER, 9, boot="m9", cores=16))
        await node.register()
        (worker,) = await node.workers(1)
        assert (worker.launch.job, worker.launch.params) == (ids["waits"], stored)
        why = failure("WorkloadError: toy refuses parameters that another version accepted", retryable=False)
        await node.say(worker, WorkerState.FAILED, exit_code=1, failure=why)
        assert why.message in (await client.until(ids["waits"], "failed"))["reason"]
        assert (await client.user("POST", f"/jobs/{ids['waits']}/retry")).is_success
        assert (await client.user("POST", f"/jobs/{ids['paused']}/resume")).is_success
        assert {one.launch.job for one in await node.workers(2)} == {ids["waits"], ids["paused"]}
        assert (await client.user("GET", "/readyz")).status_code == 200


@pytest.mark.parametrize("version", ["0.0.9", "9.0.0"])
async def test_a_node_of_another_release_gets_no_new_workers_even_if_it_has_not_noticed(
    tmp_path: Path, version: str
) -> None:
    """Its last self-check was against an earlier master. With the same parameters it could run something else."""
    async with serving(make_settings(tmp_path)) as client:
        spec = make_spec("trainer-0", Role.TRAINER).model_copy(update={"version": version})
        node = Node(client, spec, findings=(Finding(check="version", level=Level.OK, message="the same"),))
        assert (await node.register()).status_code == 200
        await node.beat()
        job = (await client.submit(roles={"parameter-server": 0, "trainer": 1}))["id"]
        waiting = await client.until(job, "queued", also=lambda document: document["waiting_for"])
        assert f"its version is {version}, the master's is {__version__}" in waiting["waiting_for"]
        (shown,) = (await client.user("GET", "/nodes")).json()["nodes"]
        assert [(one["check"], one["level"]) for one in shown["findings"]] == [("version", "error")]
        assert await node.beat() == []
        await Node(client, spec.model_copy(update={"version": __version__})).register()
        assert len(await node.workers(1)) == 1


@pytest.mark.slow
async def test_a_newer_nodes_heartbeat_is_taken_but_for_what_is_not_known(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles={"parameter-server": 0, "trainer": 2}))["id"]
        first, second = await node.workers(2)
        await node.say(second, WorkerState.RUNNING)
        report = {"job": job, "attempt": 1, "pid": 7, "numa": 3}
        beat = {
            "started": node.spec.started,
            "load": 0.5,
            "workers": [
                report | {"rank": first.launch.worker.rank, "state": "warming-up"},
                report | {"rank": second.launch.worker.rank, "state": "succeeded", "exit_code": 0},
            ],
            "findings": [
                {"check": "clock", "level": "catastrophe", "message": "its clock ran away", "since": 5},
                {"level": "ok"},
            ],
        }
        answer = await client.internal("POST", "/nodes/trainer-0/heartbeat", json=beat)
        assert answer.status_code == 200, answer.text
        assert [worker["launch"]["worker"]["rank"] for worker in answer.json()["workers"]] == [0]
        (shown,) = (await client.user("GET", "/nodes")).json()["nodes"]
        assert [(one["check"], one["level"]) for one in shown["findings"]] == [("clock", "warning")]
        await node.say(first, WorkerState.RUNNING)
        newer = b'{"kind": "heatmap", "at": "2030-01-01T00:00:00Z"}\n'
        await node.ship(first, "progress", newer + line("step", step=3).model_dump_json().encode() + b"\n")
        assert (await client.job(job))["progress"]["step"] == 3


async def test_a_newer_nodes_registration_is_taken_or_waits_for_a_newer_master(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        spec = make_spec("trainer-0", Role.TRAINER).model_dump(mode="json") | {"fabric": "infiniband"}
        assert (await client.internal("POST", "/nodes", json=spec)).status_code == 200
        waits = await client.internal("POST", "/nodes", json=spec | {"name": "new-0", "role": "evaluator"})
        assert waits.status_code == 503
        assert "no role 'evaluator'; upgrade the master before its nodes" in waits.json()["detail"]
        broken = await client.http.post("/internal/nodes", content=b"{", headers=bearer(NODE_TOKEN))
        assert broken.status_code == 422
        listed = await client.http.post("/internal/nodes", json=[], headers=bearer(NODE_TOKEN))
        assert listed.status_code == 422


def test_a_newer_masters_word_stops_no_worker_that_it_wants_to_run() -> None:
    message = recorded("desired")
    unknown, stopped = message["workers"]
    unknown["launch"]["worker"]["role"] = "evaluator"
    unknown["launch"]["shards"] = [1, 2]
    stopped["stop"] = "hibernate"
    wanted = Desired.model_validate_json(json.dumps(message | {"epoch": 7}))
    assert wanted.version == message["version"]
    assert [worker.stop for worker in wanted.workers] == [StopMode.DRAIN]
    (unread,) = wanted.unread
    assert "role" in unread.why
    assert "unread" not in wanted.model_dump()
    spared = {Key(unread.job, unread.attempt, unread.rank)}
    other = Key.of(wanted.workers[0].launch)
    running = dict.fromkeys([*spared, other], Actual(joined=True, has_port=True))
    assert actions(wanted.workers, running, 10.0, spared) == [Ask(other, StopMode.DRAIN)]
    assert actions((), {}, 10.0, spared) == []


def test_values_of_a_newer_release_have_the_meaning_that_loses_least() -> None:
    assert StopMode("hibernate") is StopMode.DRAIN
    assert Level("catastrophe") is Level.WARNING
    for kind in (StopMode, Level):
        with pytest.raises(ValueError, match="None is not a valid"):
            kind(None)
    replies = json.loads((RECORDED / "fork_replies.jsonl").read_text().splitlines()[1])
    assert FORK_REPLY.validate_python(replies | {"cgroup": "/x"}).kind == "forked"
