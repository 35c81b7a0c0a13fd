"""What `compose.yaml` and the Dockerfile say, against the code; nothing is started."""

import re
from typing import Any

import pytest
import yaml
from tests.deploy.manifests import ROOT
from tests.deploy.stack import FILE, configuration, engine

from rolecall import __version__
from rolecall.settings import BuilderSettings, MasterSettings, NodeSettings
from rolecall.spec.role import Role

GPU = ROOT / "compose.gpu.yaml"
HOSTS = ROOT / "compose.hosts.yaml"
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
MANUAL = "".join((ROOT / "docs" / page).read_text() for page in ("docker.md", "operations.md"))
NODES = [role.value for role in Role if role is not Role.MASTER]
ROLES = [role.value for role in Role]
GANG_PORTS = "40000 49999"
LOOPBACK = "127.0.0.1"

pytestmark = pytest.mark.usefixtures("composed")


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


def test_versions_agree() -> None:
    assert f"ARG VERSION={__version__}\n" in DOCKERFILE
    assert set(re.findall(r"ROLECALL_VERSION:-([^}]+)}", FILE.read_text())) == {__version__}


def test_every_setting_is_one_that_the_programs_read(composed: dict[str, Any]) -> None:
    fields = [
        field.validation_alias
        for kind in (MasterSettings, NodeSettings, BuilderSettings)
        for field in kind.model_fields.values()
    ]
    known = {*fields, *(f"{name}_FILE" for name in ("ROLECALL_TOKEN", "ROLECALL_NODE_TOKEN", "ROLECALL_DATABASE_URL"))}
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


def test_variables_scale(composed: dict[str, Any]) -> None:
    variables = {"PARAMETER_SERVERS": "3", "TRAINERS": "4", "STAGES": "5", "OBSERVERS": "6"}
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
    scrapes = yaml.safe_load((ROOT / "monitoring/prometheus.yml").read_text())["scrape_configs"]
    for scrape in scrapes:
        assert scrape["authorization"]["credentials_file"].rpartition("/")[0] in targets
    dashboards = yaml.safe_load((ROOT / "monitoring/grafana/provisioning/dashboards/rolecall.yaml").read_text())
    grafana = {volume["target"] for volume in services["grafana"]["volumes"]}
    assert {one["options"]["path"] for one in dashboards["providers"]} <= grafana
    assert set(services["grafana"]["networks"]) == set(services["prometheus"]["networks"]) == {"control"}


def test_gpus_are_seen_by_all_who_train(composed: dict[str, Any]) -> None:
    services = configuration(FILE, GPU)["services"]
    gpus = {"capabilities": ["gpu"], "count": -1, "driver": "nvidia"}
    for role in ROLES:
        if role not in {"trainer", "stage"}:
            assert services[role] == composed[role]
            continue
        assert services[role]["deploy"]["resources"]["reservations"]["devices"] == [gpus]
        assert services[role]["ipc"] == "host"
        assert services[role]["ulimits"] == {"memlock": -1}


def test_every_variable_is_explained() -> None:
    used = set(re.findall(r"\$\{([A-Z_]+)", FILE.read_text() + GPU.read_text() + HOSTS.read_text()))
    assert {name for name in used if f"`{name}`" not in MANUAL} == set()
