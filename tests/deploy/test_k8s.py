# pyright: standard
"""The manifests render, are valid for the newest Kubernetes, and mean what the code means."""

import json
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from tests.deploy.manifests import (
    COMPONENTS,
    K8S,
    OVERLAYS,
    RDMA,
    ROOT,
    Object,
    build,
    check_schema,
    container,
    environment,
    everything,
    named,
    newest_versions,
    of_kind,
    pod_labels,
    pod_spec,
    port_range,
    ports,
    program,
    render,
    role_of,
    roles,
    selects,
    workloads,
)

from rolecall import __version__
from rolecall.master.api import cluster
from rolecall.node.health import NodeHealth
from rolecall.node.scrape_access import ScrapeAccess
from rolecall.node.telemetry import app as node_app
from rolecall.settings.environment import read_role
from rolecall.settings.master import MasterSettings, read_master
from rolecall.settings.node import NodeSettings, read_node
from rolecall.settings.worker import WorkerSettings
from rolecall.spec.role import Role
from rolecall.supervisor import restart_delay_s

OVERLAY = pytest.mark.parametrize("overlay", OVERLAYS)
# Read by others than us in our containers.
FOREIGN = dict.fromkeys(["NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES"], "NVIDIA's container runtime")
CHECKOV = ROOT / ".venv-checkov/bin/checkov"


@pytest.mark.slow
def test_the_default_is_the_cpu_overlay() -> None:
    assert build(K8S) == render("cpu")


def test_all_overlays_are_known() -> None:
    assert OVERLAYS == ["cpu", "gpu", "single-node"]
    assert {"monitoring", "postgres", "ingress"} <= set(COMPONENTS)


@pytest.mark.slow
def test_every_object_is_valid_for_the_newest_versions() -> None:
    # The operator's own kinds have no schemas there; test_k8s_network and test_monitoring test their meaning.
    operators = {"ServiceMonitor", "PrometheusRule"}
    objects = [one for overlay in OVERLAYS for one in everything(overlay) if one["kind"] not in operators]
    for text in {json.dumps(one, sort_keys=True) for one in objects}:
        for version in newest_versions(3):
            check_schema(json.loads(text), version)


@pytest.mark.slow
@OVERLAY
def test_the_policy_scanner_finds_nothing(overlay: str, tmp_path: Path) -> None:
    found = program("checkov", CHECKOV)
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(everything(overlay)))
    command = [found, "--config-file", K8S / "checkov.yaml", "--directory", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"Passed checks: [1-9]\d\d+, Failed checks: 0,", done.stdout), done.stdout + done.stderr


@OVERLAY
def test_the_roles_are_those_of_the_code(overlay: str) -> None:
    assert sorted(role_of(one) for one in roles(render(overlay))) == sorted(Role)
    for one in roles(render(overlay)):
        assert environment(one)["ROLE"] == role_of(one)
        assert container(one)["image"] == f"rolecall-{role_of(one)}:{__version__}"
        assert one["metadata"]["name"] == f"rolecall-{role_of(one)}"
        assert one["kind"] == ("Deployment" if role_of(one) == Role.MASTER else "StatefulSet")


@pytest.mark.slow
@OVERLAY
def test_no_image_floats(overlay: str) -> None:
    for one in workloads(everything(overlay)):
        tag = container(one)["image"].rpartition("/")[2].partition(":")[2]
        assert tag not in ("", "latest")


@pytest.mark.slow
@OVERLAY
def test_every_variable_is_one_that_is_read(overlay: str) -> None:
    kinds = (MasterSettings, NodeSettings, WorkerSettings)
    fields = [field for kind in kinds for field in kind.model_fields.values()]
    known = {str(field.validation_alias): "settings" for field in fields} | FOREIGN
    for one in roles(everything(overlay)):
        assert {name.removesuffix("_FILE") for name in environment(one)} <= known.keys()


@OVERLAY
def test_the_programs_accept_their_environment(overlay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for one in roles(everything(overlay)):
        with monkeypatch.context() as patch:
            for name, value in environment(one).items():
                patch.setenv(name, str(_secret(tmp_path, name)) if name.endswith("_FILE") else value)
            assert read_role() == role_of(one)
            assert ports(one)["metrics"] == read_node().metrics_port
            if read_role() == Role.MASTER:
                assert ports(one)["http"] == read_master().port
                assert read_master().database_url is not None


def _secret(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("postgresql://a:b@c/d" if "DATABASE" in name else f"the-{name}-of-the-tests")
    return path


@OVERLAY
def test_the_certificate_is_used_on_every_connection_to_the_master(overlay: str) -> None:
    objects = everything(overlay)
    service = named(objects, "Service", "rolecall-master")["metadata"]["name"]
    for one in roles(objects):
        assert environment(one)["ROLECALL_TLS_NAME"] == service
        assert environment(one)["ROLECALL_TLS_CA"].endswith("/ca.crt")
        is_master = role_of(one) == Role.MASTER
        assert ("ROLECALL_TLS_KEY" in environment(one)) == is_master
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container(one)[kind]["httpGet"]
            assert asked.get("scheme", "HTTP") == ("HTTPS" if asked["port"] == "http" else "HTTP")
    (endpoint,) = named(objects, "ServiceMonitor", "rolecall-master")["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]["serverName"]) == ("https", service)
    (nodes,) = named(objects, "ServiceMonitor", "rolecall-nodes")["spec"]["endpoints"]
    assert "scheme" not in nodes
    annotations = named(objects, "Ingress", "rolecall")["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/backend-protocol"] == "HTTPS"


@OVERLAY
def test_nodes_find_the_master(overlay: str) -> None:
    objects = render(overlay)
    service = named(objects, "Service", "rolecall-master")
    for one in roles(objects):
        if role_of(one) == Role.MASTER:
            assert environment(one)["MASTER_ADDR"] == "10.1.2.3", "driver ranks must not call themselves 127.0.0.1"
        else:
            assert environment(one)["MASTER_ADDR"] == service["metadata"]["name"]
    assert service["spec"]["ports"][0]["port"] == MasterSettings.model_fields["port"].default


@OVERLAY
def test_probes_ask_routes_that_are_open(overlay: str) -> None:
    node = node_app(
        NodeHealth("a-node", Role.TRAINER),
        ScrapeAccess(lambda: ["a-token-of-the-tests"], now=lambda: datetime.now(UTC)),
    )
    routes = {
        "http": {route.path for route in cast(list[Any], cluster.open_router.routes)},
        "metrics": {route.path for route in cast(list[Any], node.routes)} - {"/metrics"},
    }
    for one in roles(render(overlay)):
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container(one)[kind]["httpGet"]
            assert asked["path"] in routes[asked["port"]]
            assert asked["port"] in ports(one)


@OVERLAY
def test_liveness_waits_for_the_supervisor(overlay: str) -> None:
    for one in workloads(everything(overlay)):
        probe = container(one)["livenessProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] > 2 * restart_delay_s(failures=100)


@OVERLAY
def test_pods_may_write_their_checkpoint_before_they_are_killed(overlay: str) -> None:
    for one in roles(render(overlay)):
        hook = container(one).get("lifecycle", {}).get("preStop", {"sleep": {"seconds": 0}})
        needed = hook["sleep"]["seconds"] + float(environment(one)["ROLECALL_STOP_GRACE_S"])
        assert pod_spec(one)["terminationGracePeriodSeconds"] >= needed + 5
        assert (role_of(one) == Role.MASTER) == (hook["sleep"]["seconds"] > 0), "SIGTERM twice would hurry a node"


@OVERLAY
def test_every_service_selects_pods_and_ports(overlay: str) -> None:
    objects = everything(overlay)
    for service in of_kind(objects, "Service"):
        chosen = [one for one in workloads(objects) if service["spec"]["selector"].items() <= pod_labels(one).items()]
        assert [one["metadata"]["name"] for one in chosen] == [service["metadata"]["name"]]
        for port in service["spec"]["ports"]:
            assert ports(chosen[0])[port["targetPort"]] == port["port"]
    for one in of_kind(objects, "StatefulSet"):
        service = named(objects, "Service", one["spec"]["serviceName"])
        assert service["spec"]["clusterIP"] == "None"
        if one in roles(objects):
            assert service["spec"]["publishNotReadyAddresses"] is True


@OVERLAY
def test_every_pod_has_a_budget_that_lets_a_drain_continue(overlay: str) -> None:
    objects = everything(overlay)
    for one in workloads(objects):
        chosen = [
            budget["spec"]
            for budget in of_kind(objects, "PodDisruptionBudget")
            if selects(budget["spec"]["selector"], pod_labels(one))
        ]
        assert [budget["maxUnavailable"] for budget in chosen] == [1]


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_the_nodes_of_a_role_are_spread_over_machines(overlay: str) -> None:
    for one in of_kind(render(overlay), "StatefulSet"):
        (rule,) = pod_spec(one)["topologySpreadConstraints"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert rule["labelSelector"] == one["spec"]["selector"]


@OVERLAY
def test_one_master_at_a_time(overlay: str) -> None:
    master = named(render(overlay), "Deployment", "rolecall-master")["spec"]
    assert (master["replicas"], master["strategy"]) == (1, {"type": "Recreate"})


def test_all_gpus_of_a_pod_are_slots() -> None:
    with_gpus = set()
    for one in roles(render("gpu")):
        resources = container(one)["resources"]
        if gpus := resources["limits"].get("nvidia.com/gpu"):
            with_gpus.add(role_of(one))
            assert resources["requests"] == resources["limits"] | {
                "ephemeral-storage": resources["requests"]["ephemeral-storage"]
            }
            assert environment(one)["ROLECALL_CPU_SLOTS"] == str(gpus)
            assert environment(one)["ROLECALL_WORKERS_PER_GPU"] == "1", "as many CPU slots as workers on GPUs"
            assert int(resources["limits"]["cpu"]) % gpus == 0
            assert environment(one)["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert with_gpus == {Role.TRAINER, Role.STAGE}


def test_who_computes_without_a_gpu_does_not_miss_it() -> None:
    for one in roles(render("gpu")):
        hidden = Role(role_of(one)).computes and "nvidia.com/gpu" not in container(one)["resources"]["limits"]
        assert environment(one).get("NVIDIA_VISIBLE_DEVICES") == ("none" if hidden else None)


@pytest.mark.slow
def test_rdma_changes_the_pods_with_gpus_alone() -> None:
    """As the overlay `gpu`, with an adapter, and the right to lock memory, which only root gets."""
    expected = json.loads(json.dumps(render("gpu")))
    named(expected, "Namespace", "rolecall")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "privileged"
    for one in roles(expected):
        resources = container(one)["resources"]
        if "nvidia.com/gpu" in resources["limits"]:
            for kind in ("requests", "limits"):
                resources[kind]["rdma/hca_shared_devices_a"] = 1
            container(one)["securityContext"]["capabilities"]["add"] = ["IPC_LOCK"]
            container(one)["env"].insert(0, {"name": "NCCL_IB_HCA", "value": "mlx5"})
            pod_spec(one)["securityContext"] |= {"runAsNonRoot": False, "runAsUser": 0}
    found = json.loads(json.dumps(render(RDMA)))
    for one in [*roles(found), *roles(expected)]:
        container(one)["env"].sort(key=lambda variable: variable["name"])
    assert found == expected
    for one in roles(found):
        check_schema(one, newest_versions(1)[0])


@OVERLAY
def test_cores_are_the_pods_own_or_the_whole_machines(overlay: str) -> None:
    for one in roles(render(overlay)):
        resources = container(one)["resources"]
        if overlay == "single-node":
            assert "cpu" not in resources["limits"]
        else:
            assert resources["limits"]["cpu"] == resources["requests"]["cpu"]
            assert float(resources["limits"]["cpu"]).is_integer()


@OVERLAY
def test_pods_keep_to_the_restricted_standard(overlay: str) -> None:
    objects = everything(overlay)
    labels = named(objects, "Namespace", "rolecall")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    for one in workloads(objects):
        spec, security = pod_spec(one), container(one)["securityContext"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert {next(iter(volume.keys() - {"name"})) for volume in spec["volumes"]} <= {
            "emptyDir",
            "secret",
            "persistentVolumeClaim",
        }


@OVERLAY
def test_pods_get_neither_api_tokens_nor_service_links(overlay: str) -> None:
    objects = everything(overlay)
    for one in workloads(objects):
        account = named(objects, "ServiceAccount", pod_spec(one)["serviceAccountName"])
        assert account["automountServiceAccountToken"] is False
        assert pod_spec(one)["automountServiceAccountToken"] is False
        assert pod_spec(one)["enableServiceLinks"] is False, "a Service `rolecall` would set ROLECALL_PORT"


@OVERLAY
def test_every_mount_has_its_volume(overlay: str) -> None:
    objects = everything(overlay)
    claims = {one["metadata"]["name"] for one in of_kind(objects, "PersistentVolumeClaim")}
    for one in workloads(objects):
        volumes = {volume["name"]: volume for volume in pod_spec(one)["volumes"]}
        made = {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])}
        assert {mount["name"] for mount in container(one)["volumeMounts"]} == volumes.keys() | made
        assert {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v} <= (
            claims
        )
    writable = {NodeSettings.model_fields["data"].default.as_posix(), "/tmp", "/dev/shm"}
    for one in roles(objects):
        assert writable == {m["mountPath"] for m in container(one)["volumeMounts"] if not m.get("readOnly")}


@OVERLAY
def test_secrets_are_referred_to_and_no_more_than_needed(overlay: str) -> None:
    objects = everything(overlay)
    assert of_kind(objects, "Secret") == []
    created = _documented_secrets()
    for one in workloads(objects):
        mounted = _mounted_secrets(one, created)
        read = {name: value for name, value in environment(one).items() if name.endswith("_FILE") or "_TLS_" in name}
        files = {value for value in read.values() if value.startswith("/")}
        assert files == mounted, "exactly what is read is mounted"


def _mounted_secrets(workload: Object, created: dict[str, set[str]]) -> set[str]:
    """The files of secrets in its container."""
    folders = {mount["name"]: mount["mountPath"] for mount in container(workload)["volumeMounts"]}
    files = set[str]()
    for volume in pod_spec(workload)["volumes"]:
        if secret := volume.get("secret"):
            keys = {item["key"] for item in secret["items"]} if "items" in secret else created[secret["secretName"]]
            assert keys <= created[secret["secretName"]]
            files |= {f"{folders[volume['name']]}/{key}" for key in keys}
    return files


def _documented_secrets() -> dict[str, set[str]]:
    """The secrets that the document has its reader create, with their keys."""
    commands = re.findall(r"create secret generic (\S+) (.*)", (ROOT / "docs/kubernetes.md").read_text())
    return {name: set(re.findall(r"--from-(?:literal|file)=([\w.-]+)=", keys)) for name, keys in commands}


@OVERLAY
def test_all_pods_confine_their_workers_to_one_range(overlay: str) -> None:
    (shared,) = {port_range(one) for one in roles(render(overlay))}
    assert len(shared) >= 5000
    assert not set(shared) & {*range(30000, 32768), 8080, 9100}, "node ports and the programs' own"


def test_dashboards_are_the_files_of_compose() -> None:
    objects = everything("cpu")
    found = named(objects, "ConfigMap", "rolecall-dashboards")
    files = {path.name: path.read_text() for path in (ROOT / "monitoring/dashboards").iterdir()}
    assert found["data"] == files
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
