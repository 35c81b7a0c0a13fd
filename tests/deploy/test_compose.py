"""`compose.yaml` and the Dockerfile agree with the code; nothing is started."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow.environment_variables import MLFLOW_TRACKING_TOKEN
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_HEADERS
from tests.deploy.manifests import ROOT
from tests.deploy.stack import FILE, configuration, engine

from rolecall import __version__
from rolecall.settings.master import MasterSettings
from rolecall.settings.node import NodeSettings
from rolecall.settings.secrets import SECRETS
from rolecall.settings.worker import WorkerSettings
from rolecall.spec.job import JobRequest
from rolecall.spec.resources import count_and_resources
from rolecall.spec.role import Role
from rolecall.workloads.catalogue import load

GPU = ROOT / "compose.gpu.yaml"
HOSTS = ROOT / "compose.hosts.yaml"
RDMA = ROOT / "compose.rdma.yaml"
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
MANUAL = "".join((ROOT / "docs" / page).read_text() for page in ("docker.md", "operations.md"))
NODES = [role.value for role in Role if role is not Role.MASTER]
ROLES = [role.value for role in Role]
GANG_PORTS = "40000 49999"
LOOPBACK = "127.0.0.1"
MACHINE: dict[str, Any] = {"MASTER_ADDR": "10.0.0.1", "MACHINE": "alpha", "ROLECALL_NODE_TOKEN": "a-token-of-the-tests"}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("composed")]


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    """The default: no variable, no profile."""
    engine()
    return configuration()["services"]


def test_there_is_a_service_for_every_role_and_one_that_makes_tokens(composed: dict[str, Any]) -> None:
    assert sorted(composed) == sorted([*ROLES, "tokens"])


def test_there_is_a_target_and_an_image_for_every_role(composed: dict[str, Any]) -> None:
    targets = re.findall(r"^FROM runtime AS (\S+)\nENV ROLE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert targets == [(role, role) for role in ROLES]
    for role in ROLES:
        assert composed[role]["build"]["target"] == role
        assert composed[role]["image"] == f"rolecall-{role}:{__version__}"


def test_no_image_is_built_twice() -> None:
    """Two builds of one name at once end with "already exists" in Docker's containerd store."""
    services = configuration(profiles=("*",))["services"]
    built = [service["image"] for service in services.values() if "build" in service]
    assert sorted(built) == sorted(set(built))
    assert services["tokens"]["image"] in built


def test_versions_agree() -> None:
    assert f"ARG VERSION={__version__}\n" in DOCKERFILE
    assert set(re.findall(r"ROLECALL_VERSION:-([^}]+)}", FILE.read_text())) == {__version__}


def test_every_setting_is_one_that_the_programs_read(composed: dict[str, Any]) -> None:
    fields = [
        str(field.validation_alias)
        for kind in (MasterSettings, NodeSettings, WorkerSettings)
        for field in kind.model_fields.values()
    ]
    known = {*fields, *(f"{name}_FILE" for name in SECRETS), OTEL_EXPORTER_OTLP_HEADERS, MLFLOW_TRACKING_TOKEN.name}
    for role in ROLES:
        assert set(composed[role]["environment"]) <= known


def test_no_container_has_more_rights_than_it_needs(composed: dict[str, Any]) -> None:
    for service in composed.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["logging"]["options"] == {"max-file": "3", "max-size": "10m"}
        assert "privileged" not in service


def test_the_gang_has_a_network_of_its_own(composed: dict[str, Any]) -> None:
    assert configuration()["networks"]["gang"]["internal"] is True
    for role in ROLES:
        assert sorted(composed[role]["networks"]) == ["control", "gang"]
        assert composed[role]["sysctls"] == {"net.ipv4.ip_local_port_range": GANG_PORTS}
        assert composed[role]["environment"]["MASTER_ADDR"] == "rolecall-master"
    # The name leads to the master by the gang's network alone, and so it is there that workers meet.
    assert composed["master"]["networks"]["gang"] == {"aliases": ["rolecall-master"]}
    assert not composed["master"]["networks"]["control"]


def test_the_ports_are_those_that_kubernetes_opens() -> None:
    pod = yaml.safe_load((ROOT / "k8s/base/pod.yaml").read_text())["spec"]["template"]["spec"]
    assert pod["securityContext"]["sysctls"] == [{"name": "net.ipv4.ip_local_port_range", "value": GANG_PORTS}]


def test_only_this_machine_sees_what_is_published() -> None:
    for name, service in configuration(profiles=("*",))["services"].items():
        assert all(port["host_ip"] == LOOPBACK for port in service.get("ports", [])), name


def test_nodes_get_their_own_token_only(composed: dict[str, Any]) -> None:
    for role in NODES:
        sources = {volume["source"] for volume in composed[role]["volumes"]}
        assert "node-token" in sources
        assert "user-token" not in sources


def test_what_stops_in_which_order_and_how_long_it_may_take(composed: dict[str, Any]) -> None:
    for role in ROLES:
        assert composed[role]["stop_grace_period"] == "2m30s"
        assert float(composed[role]["environment"]["ROLECALL_STOP_GRACE_S"]) < 150
    for role in NODES:
        assert composed[role]["depends_on"]["master"]["condition"] == "service_started"


def test_master_and_nodes_allow_the_same_data() -> None:
    allowed: dict[str, Any] = {"ROLECALL_DATA_ROOTS": "/data:/more", "ROLECALL_DATA_SCHEMES": "s3,gs"}
    for file, variables in ((FILE, {}), (HOSTS, MACHINE)):
        services = configuration(file, **variables, **allowed)["services"]
        for role in ROLES:
            assert allowed.items() <= services[role]["environment"].items()


def test_variables_scale(composed: dict[str, Any]) -> None:
    variables: dict[str, Any] = {"PARAMETER_SERVERS": "3", "TRAINERS": "4", "STAGES": "5", "OBSERVERS": "6"}
    scaled = configuration(**variables)["services"]
    assert [scaled[role]["deploy"]["replicas"] for role in NODES] == [3, 4, 5, 6]
    assert [composed[role]["deploy"]["replicas"] for role in NODES] == [1, 2, 2, 2]


def test_images_that_hold_no_gpu_take_an_index_of_their_own() -> None:
    services = configuration(TORCH_INDEX="https://cuda.invalid", CPU_TORCH_INDEX="https://cpu.invalid")["services"]
    indexes = {role: services[role]["build"]["args"]["TORCH_INDEX"] for role in ROLES}
    light, heavy = "https://cpu.invalid", "https://cuda.invalid"
    assert indexes == {
        "master": light,
        "parameter-server": heavy,
        "trainer": heavy,
        "stage": heavy,
        "observer": light,
    }
    assert "${TORCH_INDEX:+--extra-index-url ${TORCH_INDEX}}" in DOCKERFILE


def test_the_database_is_postgres_once_it_has_a_password(composed: dict[str, Any]) -> None:
    assert composed["master"]["environment"]["ROLECALL_DATABASE_URL"] == ""
    services = configuration(profiles=("postgres",), POSTGRES_PASSWORD="a-password")["services"]
    url = "postgresql://rolecall:a-password@postgres/rolecall"
    assert services["master"]["environment"]["ROLECALL_DATABASE_URL"] == url
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == "a-password"
    assert services["master"]["depends_on"]["postgres"] == {"condition": "service_healthy", "required": False}


def test_monitoring_gets_what_its_files_name() -> None:
    services = configuration(profiles=("monitoring",))["services"]
    targets = {volume["target"] for volume in services["prometheus"]["volumes"]}
    assert not targets & {"/run/secrets/user", "/run/secrets/node"}, "Prometheus needs its own token alone"
    scrapes = yaml.safe_load((ROOT / "monitoring/prometheus.yml").read_text())["scrape_configs"]
    for scrape in scrapes:
        assert scrape["authorization"]["credentials_file"].rpartition("/")[0] in targets
    dashboards = yaml.safe_load((ROOT / "monitoring/grafana/provisioning/dashboards/rolecall.yaml").read_text())
    grafana = {volume["target"] for volume in services["grafana"]["volumes"]}
    assert {one["options"]["path"] for one in dashboards["providers"]} <= grafana
    assert set(services["grafana"]["networks"]) == set(services["prometheus"]["networks"]) == {"control"}


def test_gpus_are_seen_by_all_who_can_use_them(composed: dict[str, Any]) -> None:
    _check_gpus(configuration(FILE, GPU)["services"], composed)


def test_gpus_of_several_machines() -> None:
    hosts = configuration(HOSTS, **MACHINE)["services"]
    with_gpus = configuration(HOSTS, GPU, **MACHINE)["services"]
    _check_gpus(with_gpus, hosts)
    assert {service["network_mode"] for service in with_gpus.values()} == {"host"}


def _check_gpus(services: dict[str, Any], without: dict[str, Any]) -> None:
    gpus = {"capabilities": ["gpu"], "count": -1, "driver": "nvidia"}
    for role in ROLES:
        if role in {"parameter-server", "trainer", "stage"}:
            assert services[role]["deploy"]["resources"]["reservations"]["devices"] == [gpus]
            assert services[role]["deploy"].get("replicas", 1) == 1, "ranks of two containers have no NVLink"
            assert services[role]["environment"] == without[role]["environment"] | {"ROLECALL_WORKERS_PER_GPU": ""}
            assert services[role]["ipc"] == "host"
            assert services[role]["ulimits"] == {"memlock": -1}
            continue
        hidden = {"NVIDIA_VISIBLE_DEVICES": "none"} if Role(role).computes else {}
        environment = without[role]["environment"] | hidden
        assert services[role] == without[role] | {"environment": environment}


def test_rdma_between_several_machines() -> None:
    with_gpus = configuration(HOSTS, GPU, **MACHINE)["services"]
    with_rdma = configuration(HOSTS, GPU, RDMA, **MACHINE)["services"]
    for role in ("trainer", "stage"):
        (device,) = with_rdma[role].pop("devices")
        assert (device["source"], device["target"]) == ("/dev/infiniband", "/dev/infiniband")
        assert with_rdma[role]["environment"].pop("NCCL_IB_HCA") == "mlx5"
        assert with_rdma[role]["ulimits"] == {"memlock": -1}
    assert with_rdma == with_gpus


def test_the_manual_says_how_many_gpus_the_examples_need() -> None:
    rows = re.findall(r"^\| (`.*`) \| (\d) \| (\d)", (ROOT / "docs/docker.md").read_text(), re.MULTILINE)
    said = {name: (int(as_is), int(least)) for names, as_is, least in rows for name in re.findall("`([^`]+)`", names)}
    with_gpu = {Role.TRAINER, Role.STAGE}
    for path in (ROOT / "examples").glob("*.json"):
        job = JobRequest.model_validate_json(path.read_text())
        counts = load(job.workload).roles
        asked = {role: count_and_resources(demand)[0] for role, demand in job.roles.items()}
        as_is = sum(asked.get(role) or count.default for role, count in counts.items() if role in with_gpu)
        assert said.pop(path.stem) == (as_is, sum(count.least for role, count in counts.items() if role in with_gpu))
    assert not said


@pytest.mark.parametrize("files", [(FILE,), (HOSTS,)])
def test_every_node_gets_what_jobs_need_to_know_besides(files: tuple[Path, ...], tmp_path: Path) -> None:
    (tmp_path / "worker.env").write_text("AWS_ACCESS_KEY_ID=an-id\n")
    services = configuration(*files, **MACHINE, WORKER_ENV=str(tmp_path / "worker.env"))["services"]
    given = {name for name, service in services.items() if service["environment"].get("AWS_ACCESS_KEY_ID") == "an-id"}
    assert given == set(ROLES)


def test_secrets_go_neither_into_images_nor_into_git() -> None:
    assert {"/.env", "/worker.env"} <= set((ROOT / ".gitignore").read_text().split())
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] not in "#!"]
    assert ignored[0] == "*"
    assert not re.search(r"^!.*env$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)


def test_every_image_takes_more_packages(composed: dict[str, Any]) -> None:
    services = configuration(EXTRA_PACKAGES="s3fs gcsfs")["services"]
    assert {services[role]["build"]["args"]["EXTRA_PACKAGES"] for role in ROLES} == {"s3fs gcsfs"}
    assert {composed[role]["build"]["args"]["EXTRA_PACKAGES"] for role in ROLES} == {""}
    assert "--constraint /source/constraints.txt ${EXTRA_PACKAGES}\n" in DOCKERFILE


def test_the_images_of_others_are_pinned_by_digest() -> None:
    services = configuration(profiles=("*",), BASE_IMAGE="")["services"].values()
    images = [service["image"] for service in services if "rolecall-" not in service["image"]]
    images += [service["build"]["args"]["BASE_IMAGE"] for service in services if "build" in service]
    images += re.findall(r"^ARG BASE_IMAGE=(.+)$", DOCKERFILE, re.MULTILINE)
    for file in ROOT.glob("k8s/**/*.yaml"):
        images += re.findall(r"^ +image: (docker\.io/.+)$", file.read_text(), re.MULTILINE)
    assert {image.partition(":")[0].rpartition("/")[2] for image in images} == {
        "python",
        "postgres",
        "prometheus",
        "grafana",
    }
    assert [image for image in images if not re.search(r":[\w.-]+@sha256:[0-9a-f]{64}$", image)] == []


def test_the_repositorys_own_files_can_be_read_where_selinux_is() -> None:
    services = configuration(profiles=("*",))["services"]
    bound = [volume for one in services.values() for volume in one.get("volumes", []) if volume["type"] == "bind"]
    assert {volume["source"].partition("monitoring/")[0] for volume in bound} == {f"{ROOT}/"}
    assert all(volume["read_only"] and volume["bind"]["selinux"] == "z" for volume in bound)


def test_every_variable_is_explained() -> None:
    used = _variables(FILE, GPU, HOSTS, RDMA)
    assert {name for name in used if f"`{name}`" not in MANUAL} == set()


def test_the_variables_of_several_machines_are_listed() -> None:
    section = (ROOT / "docs/operations.md").read_text().partition("## Several machines")[2].partition("\n## ")[0]
    table = section.partition("| on | variable | meaning |")[2].partition("\n\n")[0]
    listed = {name for row in table.splitlines()[2:] for name in re.findall(r"`([A-Z_]+)`", row.split(" | ")[1])}
    # The overlay's numbers of containers are not to be touched there.
    assert listed == _variables(HOSTS, GPU) - {"TRAINERS", "STAGES"}


def _variables(*files: Path) -> set[str]:
    return {name for path in files for name in re.findall(r"\$\{([A-Z_]+)", path.read_text())}
