# pyright: standard
"""Prometheus accepts the files of `monitoring/`, and finds data behind every panel of the dashboards."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from monitoring import boards, exported, reference
from tests.cluster.jobs import long_job, past_step, short_job, workers
from tests.conftest import Cluster, running_cluster
from tests.deploy.manifests import program
from tests.ports import free_port

from rolecall.settings.master import MasterSettings
from rolecall.settings.node import NodeSettings
from rolecall.spec.role import Role

MONITORING = Path(__file__).parents[2] / "monitoring"
GRAFANA = MONITORING / "grafana/provisioning"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((MONITORING / "dashboards").iterdir())}
GENERAL = {name: DASHBOARDS[name] for name in ("cluster", "job")}
"""Those of jobs of every workload."""
DASHBOARD = pytest.mark.parametrize("name", DASHBOARDS)
COLUMNS = 24
PATIENCE_S = 60
_TEXT = {"text": {"synthetic": {"tokens": 100_000, "vocabulary": 100}}, "batch_size": 8, "sample": {"tokens": 0}}
_ROWS = {"data": {"synthetic": {"rows": 30_000, "test": 1000}}, "batch_size": 128, "epochs": 4}
_NUMBERS = {"data": {"synthetic": {"rows": 10_000, "test": 1000, "label": "number"}}, "batch_size": 128, "epochs": 1}
JOBS: list[tuple[str, dict[str, int], dict[str, Any]]] = [
    ("embedding-ddp", {"parameter-server": 1, "trainer": 1}, _ROWS),
    ("embedding-ddp", {"parameter-server": 1, "trainer": 1}, _NUMBERS),
    ("reinforce", {"observer": 1}, {"environment": "CartPole-v1", "env_steps": 30_000}),
    ("reinforce", {"observer": 1}, {"environment": "CartPole-v1", "env_steps": 10_000, "policy_at": "agent"}),
    (
        "resnet-pipeline",
        {"stage": 2},
        {"data": {"synthetic": {"images": 400, "classes": 4, "test": 20}, "size": 32}, "batch_size": 20, "epochs": 1},
    ),
    (
        "rnn-lm",
        {"parameter-server": 1, "trainer": 1},
        {**_TEXT, "embedding_dim": 16, "hidden_dim": 16, "epochs": 1},
    ),
    (
        "transformer-pipeline",
        {"stage": 2},
        {**_TEXT, "context": 32, "dim": 16, "heads": 2, "layers": 2, "epochs": 1},
    ),
]
"""Jobs that train for some seconds and end: the workload, the roles and the parameters."""
NOT_IN_SUCCESSFUL_JOBS = {"State: {{cause}}", "Failed jobs: table", "Failed jobs by cause: {{cause}}"}
"""Panels and curves."""
NOT_DRAWN = {
    "rolecall_job_submitted_timestamp_seconds": "alerts use it; panels have no use for it",
    "rolecall_node_cores": "nodes of one machine share its cores, so that a sum would be wrong",
    "rolecall_node_slots": "rolecall_slots has the slots of live nodes by role",
    "rolecall_node_certificate_expiry_timestamp_seconds": "an alert fires before the certificate expires",
}
"""The metrics without a panel, and why."""
OPTIONAL = {
    "rolecall_gpu_use_ratio": "needs a GPU",
    "rolecall_gpu_memory_used_bytes": "needs a GPU",
    "rolecall_gpu_memory_total_bytes": "needs a GPU",
    "rolecall_worker_gpu_info": "needs a GPU",
    "rolecall_worker_gpu_memory_bytes": "needs a GPU",
    "rolecall_worker_gpu_memory_peak_bytes": "needs a GPU",
}
"""The metrics that can lack values on the cluster of these tests, and why."""
TOKENS = dict.fromkeys(["rolecall-master", "rolecall-nodes"], "/run/secrets/metrics/token")


def _configuration() -> dict[str, Any]:
    return yaml.safe_load((MONITORING / "prometheus.yml").read_text())


def _scrapes(configuration: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {scrape["job_name"]: scrape for scrape in configuration["scrape_configs"]}


def test_prometheus_asks_every_service_of_compose() -> None:
    scrapes = _scrapes(_configuration())
    master, control = Role.MASTER.value, MasterSettings.model_fields["port"].default
    assert scrapes["rolecall-master"]["static_configs"] == [{"targets": [f"{master}:{control}"]}]
    (discovery,) = scrapes["rolecall-nodes"]["dns_sd_configs"]
    assert sorted(discovery["names"]) == sorted(Role)
    assert (discovery["type"], discovery["port"]) == ("A", NodeSettings.model_fields["metrics_port"].default)


def test_labels_are_kept_and_tokens_come_from_files() -> None:
    scrapes = _scrapes(_configuration())
    assert {name: one["authorization"] for name, one in scrapes.items()} == {
        name: {"credentials_file": path} for name, path in TOKENS.items()
    }
    assert all(one["honor_labels"] for one in scrapes.values()), "the label `job` is ours"


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    text = (MONITORING / "prometheus.yml").read_text()
    for path in TOKENS.values():
        (tmp_path / Path(path).name).write_text("a-token-of-the-tests")
        text = text.replace(path, str(tmp_path / Path(path).name))
    (tmp_path / "prometheus.yml").write_text(text)
    (tmp_path / "rules").symlink_to(MONITORING / "rules")
    command = [program("promtool"), "check", "config", tmp_path / "prometheus.yml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_every_rule_gives_what_is_expected_and_every_alert_has_a_runbook(tmp_path: Path) -> None:
    shutil.copy(MONITORING / "rules/rolecall.yaml", tmp_path)
    shutil.copy(Path(__file__).parent / "rules_test.yaml", tmp_path)
    _test_rules(tmp_path / "rules_test.yaml")
    rules = [rule for group in _rules()["groups"] for rule in group["rules"]]
    alerts = [rule for rule in rules if "alert" in rule]
    tests = yaml.safe_load((tmp_path / "rules_test.yaml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test.get("alert_rule_test", []) if case["exp_alerts"]}
    assert fired == {alert["alert"] for alert in alerts}
    computed = {case["expr"] for test in tests for case in test.get("promql_expr_test", []) if case["exp_samples"]}
    assert computed == {rule["record"] for rule in rules if "record" in rule}
    headings = re.findall(r"^### (\w+)$", (MONITORING.parent / "docs/operations.md").read_text(), re.MULTILINE)
    for alert in alerts:
        assert alert["annotations"]["runbook_url"] == f"docs/operations.md#{alert['alert'].lower()}"
        assert alert["alert"] in headings


def _test_rules(file: Path) -> None:
    command = [program("promtool"), "test", "rules", file.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=file.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def test_queries_without_data_on_the_cluster_of_these_tests_are_right(tmp_path: Path) -> None:
    """Two nodes of a machine export the same GPU, two workers share it, and another job has its own."""
    gpus = {("g0", "n0"): (0.5, 2), ("g0", "n1"): (0.5, 2), ("g1", "n0"): (0.75, 6)}
    series: dict[str, dict[str, float]] = {}
    for (gpu, node), (use, used) in gpus.items():
        for name, value in (("use_ratio", use), ("memory_used_bytes", used), ("memory_total_bytes", 8)):
            series.setdefault(f"rolecall_gpu_{name}", {})[f'gpu="{gpu}", instance="{node}"'] = value
    for job, rank, gpu, node in (("a", 0, "g0", "n0"), ("a", 1, "g0", "n1"), ("b", 0, "g1", "n0")):
        worker = f'job="{job}", attempt="1", role="trainer", rank="{rank}", instance="{node}"'
        series.setdefault("rolecall_worker_gpu_info", {})[f'{worker}, gpu="{gpu}"'] = 1
        series.setdefault("rolecall_worker_gpu_memory_bytes", {})[worker] = 1 + rank
        series.setdefault("rolecall_worker_gpu_memory_peak_bytes", {})[worker] = 3 + rank
    expected = {
        "cluster: GPU use: {{instance}}": {'{instance="n0"}': 0.625, '{instance="n1"}': 0.5},
        "cluster: GPU memory in use: {{instance}}": {'{instance="n0"}': 0.5, '{instance="n1"}': 0.25},
        "job: GPU use of the workers: {{role}}, rank {{rank}}": {
            f'{{job="a", attempt="1", role="trainer", rank="{rank}", gpu="g0", instance="n{rank}"}}': 0.5
            for rank in (0, 1)
        },
        "job: GPU memory of the workers: {{role}}, rank {{rank}}: now": {
            '{role="trainer", rank="0"}': 1,
            '{role="trainer", rank="1"}': 2,
        },
        "job: GPU memory of the workers: {{role}}, rank {{rank}}: maximum": {
            '{role="trainer", rank="0"}': 3,
            '{role="trainer", rank="1"}': 4,
        },
    }
    queries = {
        f"{board}: {curve}": expr for board in DASHBOARDS for curve, expr in _curves(board) if _is_optional(expr)
    }
    assert queries.keys() == expected.keys()
    cases = [
        {
            "expr": _filled(queries[curve], job="a"),
            "eval_time": "0m",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
        }
        for curve, samples in expected.items()
    ]
    inputs = [
        {"series": f"{name}{{{labels}}}", "values": str(value)}
        for name, values in series.items()
        for labels, value in values.items()
    ]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": cases}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"tests": [test]}))
    _test_rules(tmp_path / "test.yaml")


def _curves(board: str) -> list[tuple[str, str]]:
    """The title and the curve of each query of a dashboard's panels, and its expression."""
    return [
        (f"{panel['title']}: {target.get('legendFormat', 'table')}", target["expr"])
        for panel in DASHBOARDS[board]["panels"]
        for target in panel["targets"]
    ]


def _is_optional(expression: str) -> bool:
    return bool(_names_in([expression]) & OPTIONAL.keys())


def _filled(expression: str, job: str, interval: str = "10s") -> str:
    """The expression with values for Grafana's variables, those of a user who has chosen a job."""
    values = {"$job": job, "$role": ".*", "$__rate_interval": interval}
    for variable, value in values.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


def _names_in(expressions: Iterable[str]) -> set[str]:
    """The metrics of Rolecall and of its recording rules."""
    return {name for one in expressions for name in re.findall(r"\brolecall[_:][\w:]+", one)}


def _drawn() -> list[str]:
    """The expressions of all dashboards."""
    return [
        *(expr for board in DASHBOARDS for _, expr in _curves(board)),
        *(marks["expr"] for board in DASHBOARDS.values() for marks in board["annotations"].get("list", [])),
    ]


def test_every_metric_that_is_exported_is_drawn() -> None:
    drawn = _names_in(_drawn())
    without = {metric.name for metric in exported.everything() if not metric.series & drawn}
    assert without == NOT_DRAWN.keys()


def test_rules_and_dashboards_name_only_metrics_that_are_exported() -> None:
    rules = [rule for group in _rules()["groups"] for rule in group["rules"]]
    known = {name for metric in exported.everything() for name in metric.series}
    recorded = {rule["record"] for rule in rules if "record" in rule}
    assert _names_in(rule["expr"] for rule in rules) <= known
    assert _names_in(_drawn()) <= known | recorded
    assert OPTIONAL.keys() <= known


def test_runbooks_get_a_base_by_the_command_of_the_docs(tmp_path: Path) -> None:
    root = MONITORING.parent
    command = re.search(r"^sed .*runbook_url.*$", (root / "docs/operations.md").read_text(), re.MULTILINE)
    assert command
    files = ["monitoring/rules/rolecall.yaml", "k8s/components/monitoring/prometheus-rule.yaml"]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(root / name, tmp_path / name)
    for _ in range(2):  # Again, as for a second change of the base.
        subprocess.run(["bash", "-c", command[0]], cwd=tmp_path, check=True)
    for name in files:
        before, after = (re.findall(r"runbook_url: (.*)", (folder / name).read_text()) for folder in (root, tmp_path))
        assert after == [f"https://docs.example.org/rolecall/{path}" for path in before]


def test_kubernetes_gets_the_same_rules() -> None:
    manifest = MONITORING.parent / "k8s/components/monitoring/prometheus-rule.yaml"
    assert yaml.safe_load(manifest.read_text())["spec"] == _rules()


def test_the_page_of_the_metrics_is_current() -> None:
    assert reference.PATH.read_text() == reference.page(), "run python -m monitoring.reference"


def _rules() -> dict[str, Any]:
    return yaml.safe_load((MONITORING / "rules/rolecall.yaml").read_text())


def test_grafana_knows_where_everything_is() -> None:
    (source,) = yaml.safe_load((GRAFANA / "datasources/prometheus.yaml").read_text())["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == ("prometheus", "http://prometheus:9090", True)
    assert source["jsonData"]["timeInterval"] == _configuration()["global"]["scrape_interval"]
    (provider,) = yaml.safe_load((GRAFANA / "dashboards/rolecall.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"


def test_the_dashboards_are_current() -> None:
    found = {path.name: path.read_text() for path in (MONITORING / "dashboards").iterdir()}
    assert found == boards.files(), "run python -m monitoring.boards"


@DASHBOARD
def test_the_types_of_the_sdk_know_every_field(name: str) -> None:
    """Except two fields of annotations from Prometheus, which Grafana has and the SDK's type lacks."""
    register_default_plugins()
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARDS[name])))
    lost = set(_values(DASHBOARDS[name])) - set(_values(read))
    annotations = range(len(DASHBOARDS[name]["annotations"]["list"]))
    extra = ("titleFormat", "useValueForTime")
    assert {path for path, _ in lost} == {f".annotations.list.{n}.{field}" for n in annotations for field in extra}


def _values(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The path and the value of each leaf of a JSON document."""
    if not isinstance(document, dict | list):
        yield path, document
        return
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        yield from _values(value, f"{path}.{key}")


def test_dashboards_have_identities_that_links_lead_to() -> None:
    assert set(DASHBOARDS) == {"cluster", "job", *boards.BUILT_IN}
    assert {name: board["uid"] for name, board in DASHBOARDS.items()} == {
        name: f"rolecall-{name}" for name in DASHBOARDS
    }
    variables = {variable["name"] for variable in DASHBOARDS["job"]["templating"]["list"]}
    for uid, variable in re.findall(r"/d/([\w-]+)\?var-(\w+)=", json.dumps(DASHBOARDS["cluster"])):
        assert (uid, variable in variables) == ("rolecall-job", True)


@DASHBOARD
def test_panels_are_explained_and_do_not_overlap(name: str) -> None:
    panels = DASHBOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= COLUMNS
    assert not [(one["title"], other["title"]) for one, other in combinations(panels, 2) if _overlap(one, other)]


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    a, b = one["gridPos"], other["gridPos"]
    return all(a[at] < b[at] + b[size] and b[at] < a[at] + a[size] for at, size in (("x", "w"), ("y", "h")))


@pytest.fixture(scope="module")
def exporting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for jobs of every workload, which exports the jobs that end."""
    folder = tmp_path_factory.mktemp("exporting")
    (folder / "cluster").mkdir()
    exports = {"ROLECALL_TENSORBOARD_DIR": str(folder / "tensorboard")}
    with running_cluster(folder / "cluster", "--stages", "2", "--observers", "1", environment=exports) as cluster:
        yield cluster


@pytest.mark.slow
def test_there_is_data_behind_every_panel(exporting: Cluster, rows: Path, tmp_path: Path) -> None:
    cluster = exporting
    program("prometheus")
    begin = time.time()
    ended = cluster.submit(short_job(rows))
    cluster.wait_for(ended, "succeeded")
    failed = cluster.submit(long_job(rows, dense_optimizer={"name": "sgd", "lr": 1e6}))
    cluster.wait_for(failed, "failed")
    job = cluster.submit(long_job(rows, checkpoint_every_s=1.0))
    os.kill(workers(cluster.until(job, past_step(0)))["trainer-0"]["pid"], signal.SIGKILL)
    cluster.until(job, lambda document: len(document["attempts"]) == 2 and past_step(0)(document))
    with _prometheus(cluster, tmp_path / "prometheus") as prometheus:
        _await(lambda: _down(prometheus, targets=len(cluster.pids)))
        _await(lambda: _without_data(prometheus, job, failed))
        _await(lambda: _without_time(prometheus, {job, ended, failed}, begin))
        _await(lambda: _not_offered(prometheus, job=job, role="trainer"))
        assert {name for name in _metrics() if not _query(prometheus, name)} <= OPTIONAL.keys()
        _await(lambda: _unhealthy_rules(prometheus))
        assert _exported(prometheus) <= {name for metric in exported.everything() for name in metric.series}
    cluster.client.post(f"/jobs/{job}/cancel").raise_for_status()
    cluster.wait_for(job, "cancelled")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_there_is_data_behind_the_panels_of_every_workload(exporting: Cluster, tmp_path: Path) -> None:
    program("prometheus")
    begin, jobs, cluster = time.time(), dict[str, list[str]](), exporting
    with _prometheus(cluster, tmp_path / "prometheus") as prometheus:
        for name, roles, params in JOBS:
            request = {"workload": name, "roles": roles, "params": {**params, "checkpoint_every_s": 0.5}}
            jobs.setdefault(name, []).append(cluster.submit(request))
        for job in chain.from_iterable(jobs.values()):
            cluster.wait_for(job, "succeeded", 300)
        assert jobs.keys() == set(boards.BUILT_IN)
        _await(lambda: _without_data_of_workloads(prometheus, jobs, begin))
        undrawn = {name: _measured(prometheus, of_workload) - _drawn_of(name) for name, of_workload in jobs.items()}
        assert not any(undrawn.values()), undrawn


def _without_data_of_workloads(prometheus: httpx.Client, jobs: dict[str, list[str]], begin: float) -> list[str]:
    """The queries of the dashboards of jobs that lack data for a workload, and those of the cluster's."""
    whole = [job for of_workload in jobs.values() for job in of_workload]
    looks = [(board, name) for name in jobs for board in (name, "job")]
    return sorted(
        f"{board}, of {of}: {curve}"
        for board, of in [("cluster", "all"), *looks]
        for curve in _without(prometheus, board, jobs.get(of, whole), begin) - NOT_IN_SUCCESSFUL_JOBS
    )


def _drawn_of(workload: str) -> set[str]:
    """The metrics on the dashboards that show a job of this workload."""
    return _names_in(expr for board in (workload, "job") for _, expr in _curves(board))


def _without(prometheus: httpx.Client, board: str, jobs: Iterable[str], begin: float) -> set[str]:
    """The queries that had no data for any of the jobs at any second since `begin`, as their titles and curves."""
    return {
        curve
        for curve, expr in _curves(board)
        if not _is_optional(expr)
        and not any(_had_data(prometheus, _filled(expr, job, interval="4s"), begin) for job in jobs)
    }


def _had_data(prometheus: httpx.Client, query: str, begin: float) -> bool:
    window = {"query": query, "start": begin, "end": time.time(), "step": "1s"}
    answer = prometheus.get("/api/v1/query_range", params=window)
    assert answer.status_code == 200, f"{query}: {answer.text}"
    return bool(answer.json()["data"]["result"])


def _measured(prometheus: httpx.Client, jobs: Iterable[str]) -> set[str]:
    """The names of the series of the jobs' workers."""
    matches = [f'{{job="{job}", __name__=~"rolecall_worker_.+"}}' for job in jobs]
    answer = prometheus.get("/api/v1/series", params={"match[]": matches}).raise_for_status()
    return {series["__name__"] for series in answer.json()["data"]}


def _await(missing: Callable[[], list[str]]) -> None:
    """Ask again until nothing is missing: Prometheus looks once a second, and rates need two looks."""
    deadline = time.monotonic() + PATIENCE_S
    while left := missing():
        assert time.monotonic() < deadline, "\n".join(left)
        time.sleep(0.5)


def _down(prometheus: httpx.Client, targets: int) -> list[str]:
    answers = _query(prometheus, "up")
    down = [str(answer["metric"]) for answer in answers if answer["value"][1] != "1"]
    return down if len(answers) == targets else [f"{len(answers)} of {targets} targets"]


def _metrics() -> set[str]:
    """The metrics that the panels name; an `or vector(0)` would hide one that does not exist."""
    queries = [expr for board in GENERAL for _, expr in _curves(board)]
    return {name for query in queries for name in re.findall(r"\brolecall_\w+|\bup\b", query)}


def _exported(prometheus: httpx.Client) -> set[str]:
    """The metrics that the programs export, without the times at which the client library created them."""
    names: list[str] = prometheus.get("/api/v1/label/__name__/values").raise_for_status().json()["data"]
    return {name for name in names if name.startswith("rolecall_") and not name.endswith("_created")}


def _without_data(prometheus: httpx.Client, *jobs: str) -> list[str]:
    """The queries that have no data for any of the jobs."""
    return [
        f"{board}: {curve}: {expr}"
        for board in GENERAL
        for curve, expr in _curves(board)
        if not _is_optional(expr) and not any(_query(prometheus, _filled(expr, job)) for job in jobs)
    ]


def _without_time(prometheus: httpx.Client, jobs: set[str], begin: float) -> list[str]:
    """The events of the jobs that a dashboard doesn't mark at a time since `begin`, in milliseconds."""
    events = {f"{name}: {one['name']}": one for name, b in DASHBOARDS.items() for one in b["annotations"]["list"]}
    assert {name.partition(":")[0] for name in events} == DASHBOARDS.keys()
    assert all(event["useValueForTime"] for event in events.values())
    times = {
        name: [
            float(found["value"][1])
            for job in jobs
            for found in _query(prometheus, _filled(event["expr"], job))
            if found["metric"]["job"] in jobs  # The cluster's dashboard also marks those of other tests.
        ]
        for name, event in events.items()
    }
    least, most = 1000 * begin, 1000 * time.time()
    return [name for name, found in times.items() if not found or not all(least < at <= most for at in found)]


def _not_offered(prometheus: httpx.Client, **values: str) -> list[str]:
    """Those of the values that the dashboards' variables of these names don't offer."""
    variables = [one for board in GENERAL.values() for one in board["templating"]["list"] if one["name"] in values]
    assert {one["name"] for one in variables} == values.keys()
    missing: list[str] = []
    for variable in variables:
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
        assert found
        answer = prometheus.get(f"/api/v1/label/{found[2]}/values", params={"match[]": found[1]}).raise_for_status()
        missing += {values[variable["name"]]} - set(answer.json()["data"])
    return missing


def _unhealthy_rules(prometheus: httpx.Client) -> list[str]:
    """The rules that Prometheus has not evaluated yet, or can't evaluate."""
    groups = prometheus.get("/api/v1/rules").raise_for_status().json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == sum(len(group["rules"]) for group in _rules()["groups"])
    return [f"{one['name']}: {one['health']} {one.get('lastError')}" for one in rules if one["health"] != "ok"]


def _query(prometheus: httpx.Client, expression: str) -> list[dict[str, Any]]:
    answer = prometheus.get("/api/v1/query", params={"query": expression})
    assert answer.status_code == 200, f"{expression}: {answer.text}"
    return answer.json()["data"]["result"]


@contextmanager
def _prometheus(cluster: Cluster, folder: Path) -> Generator[httpx.Client]:
    """A real Prometheus with the shipped configuration, told where this cluster's programs and tokens are."""
    folder.mkdir()
    (folder / "prometheus.yml").write_text(yaml.safe_dump(_moved(cluster, folder)))
    (folder / "rules").symlink_to(MONITORING / "rules")
    address = f"127.0.0.1:{free_port()}"
    options = {"config.file": folder / "prometheus.yml", "storage.tsdb.path": folder / "data"}
    command = [program("prometheus"), *(f"--{name}={value}" for name, value in options.items())]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=10) as client:
            _await(lambda: [] if _is_ready(client) else [(folder / "log").read_text()])
            yield client
    finally:
        process.terminate()
        process.wait(timeout=30)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").is_success
    except httpx.TransportError:
        return False


def _moved(cluster: Cluster, folder: Path) -> dict[str, Any]:
    """The shipped configuration with other addresses, tokens and intervals; all else as it is."""
    token = psutil.Process(cluster.pid("trainer-0")).environ()["ROLECALL_METRICS_TOKEN"]
    nodes = cluster.client.get("/nodes").raise_for_status().json()["nodes"]
    places = {
        "rolecall-master": [cluster.url.removeprefix("http://")],
        "rolecall-nodes": [f"127.0.0.1:{node['spec']['metrics_port']}" for node in nodes],
    }
    every_second = dict.fromkeys(["scrape_interval", "scrape_timeout", "evaluation_interval"], "1s")
    configuration = _configuration() | {"global": every_second}
    for name, scrape in _scrapes(configuration).items():
        (folder / name).write_text(token)
        scrape["authorization"] = {"credentials_file": str(folder / name)}
        scrape.pop("dns_sd_configs", None)
        scrape["static_configs"] = [{"targets": places[name]}]
    return configuration
