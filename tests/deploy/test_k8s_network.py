"""Connections on Kubernetes: the network policies, the Ingress, the targets of Prometheus, and the document."""

import re
import shlex
import subprocess
from itertools import pairwise, product
from typing import Any, cast

import pytest
import yaml
from tests.deploy.manifests import (
    K8S,
    OVERLAYS,
    ROOT,
    Object,
    Pod,
    check_schema,
    container,
    everything,
    may_talk,
    named,
    newest_versions,
    of_kind,
    pod_labels,
    port_range,
    ports,
    program,
    render,
    render_kustomization,
    role_of,
    roles,
    selects,
    workloads,
)

from rolecall.master.api import attempts, audit, cluster, description, files, jobs, nodes, tokens
from rolecall.settings.master import MasterSettings
from rolecall.settings.node import NodeSettings
from rolecall.spec.role import Role

DOCUMENT = (ROOT / "docs/kubernetes.md").read_text()
OVERLAY = pytest.mark.parametrize("overlay", OVERLAYS)
CONTROL = MasterSettings.model_fields["port"].default
METRICS = NodeSettings.model_fields["metrics_port"].default
POSTGRES = 5432
PROMETHEUS = Pod({"app.kubernetes.io/name": "prometheus"}, "monitoring")
CONTROLLER = Pod({"app.kubernetes.io/name": "ingress-nginx"}, "ingress-nginx")
OTHER_PODS = [
    Pod({}, "default"),
    Pod({"app.kubernetes.io/name": "prometheus"}, "default"),
    Pod({"app.kubernetes.io/name": "rolecall", "app.kubernetes.io/component": "master"}, "default"),
    Pod({"app.kubernetes.io/name": "other"}, "monitoring"),
    Pod({"app.kubernetes.io/name": "other"}),
]


def _pods(objects: tuple[Object, ...]) -> dict[str, Pod]:
    """One pod of each workload, by its label."""
    return {role_of(one): Pod(pod_labels(one)) for one in workloads(objects)}


def _gang_ports(objects: tuple[Object, ...]) -> range:
    return port_range(roles(objects)[0])


@pytest.mark.slow
@OVERLAY
def test_nothing_is_allowed_unless_it_is_named(overlay: str) -> None:
    denial = named(render(overlay), "NetworkPolicy", "default-deny")["spec"]
    assert denial == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@pytest.mark.slow
@OVERLAY
def test_gangs_meet_on_their_range_alone(overlay: str) -> None:
    objects = everything(overlay)
    pods, gang = _pods(objects), _gang_ports(objects)
    for source, target in product(Role, Role):
        reach = {port for port in _interesting(gang) if may_talk(objects, pods[source], pods[target], port)}
        control = {CONTROL} if target is Role.MASTER else set[int]()
        assert reach == {gang[0], gang[-1]} | control, (source, target)


@OVERLAY
def test_other_pods_reach_nothing(overlay: str) -> None:
    objects = everything(overlay)
    pods, interesting = _pods(objects), _interesting(_gang_ports(objects))
    for other, target, port in product(OTHER_PODS, pods.values(), interesting):
        assert not may_talk(objects, other, target, port)
        assert not may_talk(objects, target, other, port)


@OVERLAY
def test_only_the_master_reaches_the_database(overlay: str) -> None:
    objects = everything(overlay)
    pods = _pods(objects)
    assert [name for name in pods if may_talk(objects, pods[name], pods["database"], POSTGRES)] == [Role.MASTER]
    assert not any(may_talk(objects, pods["database"], pod, port) for pod in pods.values() for port in _interesting())


@OVERLAY
def test_prometheus_reaches_metrics_alone(overlay: str) -> None:
    objects = everything(overlay)
    for name, pod in _pods(objects).items():
        reach = {port for port in _interesting(_gang_ports(objects)) if may_talk(objects, PROMETHEUS, pod, port)}
        assert reach == {Role.MASTER: {CONTROL, METRICS}, "database": set[int]()}.get(name, {METRICS})
        assert not may_talk(render(overlay), PROMETHEUS, pod, METRICS), "only with the component"


@OVERLAY
def test_the_ingress_reaches_the_master_alone(overlay: str) -> None:
    objects = everything(overlay)
    for name, pod in _pods(objects).items():
        reach = {port for port in _interesting(_gang_ports(objects)) if may_talk(objects, CONTROLLER, pod, port)}
        assert reach == ({CONTROL} if name == Role.MASTER else set())
        assert not may_talk(render(overlay), CONTROLLER, pod, CONTROL), "only with the component"


def _interesting(gang: range = range(40000, 50000)) -> set[int]:
    """The ports that something listens on, the edges of the range, and what lies just outside."""
    return {CONTROL, METRICS, POSTGRES, gang[0] - 1, gang[0], gang[-1], gang[-1] + 1, 22, 443}


@OVERLAY
def test_policies_name_only_ports_that_are_used(overlay: str) -> None:
    objects = everything(overlay)
    gang = _gang_ports(objects)
    used = {(port, port) for one in workloads(objects) for port in ports(one).values()} | {
        (gang[0], gang[-1]),
        (53, 53),
    }
    for policy in of_kind(objects, "NetworkPolicy"):
        for rule in [*policy["spec"].get("ingress", []), *policy["spec"].get("egress", [])]:
            for port in rule["ports"]:
                assert (port["port"], port.get("endPort", port["port"])) in used, policy["metadata"]["name"]


@OVERLAY
def test_policies_select_pods(overlay: str) -> None:
    objects = everything(overlay)
    for policy in of_kind(objects, "NetworkPolicy"):
        selector = policy["spec"]["podSelector"]
        assert any(selects(selector, pod_labels(one)) for one in workloads(objects)), policy["metadata"]["name"]


def test_the_ingress_shows_what_users_call_and_nothing_else() -> None:
    (rule,) = named(everything("cpu"), "Ingress", "rolecall")["spec"]["rules"]
    shown = rule["http"]["paths"]

    def is_shown(path: str) -> bool:
        return any(
            path == one["path"] or (one["pathType"] == "Prefix" and path.startswith(one["path"] + "/")) for one in shown
        )

    routers = [jobs.router, files.router, cluster.router, cluster.open_router, cluster.admin_router]
    routers += [description.router, tokens.router, audit.router]
    public = {route.path for router in routers for route in cast(list[Any], router.routes)}
    internal = {route.path for router in (nodes.router, attempts.router) for route in cast(list[Any], router.routes)}
    assert [path for path in public if not is_shown(path)] == []
    assert [path for path in internal | {"/metrics"} if is_shown(path)] == []
    for one in shown:
        service = named(everything("cpu"), "Service", one["backend"]["service"]["name"])
        assert one["backend"]["service"]["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}


@OVERLAY
def test_prometheus_finds_every_program(overlay: str) -> None:
    objects = everything(overlay)
    found = set[tuple[str, str]]()
    for monitor in of_kind(objects, "ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        assert (endpoint["path"], endpoint["honorLabels"]) == ("/metrics", True)
        assert endpoint["authorization"]["credentials"] == {"name": "rolecall-tokens", "key": "metrics-token"}
        for service in of_kind(objects, "Service"):
            if selects(monitor["spec"]["selector"], service["metadata"].get("labels", {})):
                assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
                found.add((service["metadata"]["name"], endpoint["port"]))
    assert found == {(f"rolecall-{role}", "metrics") for role in Role} | {("rolecall-master", "http")}


BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)]


def _own(*components: str) -> tuple[Object, ...]:
    """The document's own kustomization with all that it says may be added to it, and with these components besides."""
    (own,) = [block for block in BLOCKS if block.get("kind") == "Kustomization"]
    patches = [patch for block in BLOCKS if block.keys() == {"patches"} for patch in block["patches"]]
    added = [f"../components/{name}" for name in components]
    whole = own | {"patches": patches, "components": own["components"] + added}
    return render_kustomization(whole, K8S / "overlays")


def test_the_documents_kustomization_renders() -> None:
    moved = {container(one)["image"] for one in roles(_own("monitoring"))}
    assert all(image.startswith("registry.example.com/rolecall-") for image in moved)
    assert len(moved) == len(Role)


@pytest.mark.slow
def test_the_documents_patches_do_what_it_says() -> None:
    objects = _own("monitoring")
    assert all(one["imagePullSecrets"] == [{"name": "registry"}] for one in of_kind(objects, "ServiceAccount"))
    for one in roles(objects):
        assert container(one)["envFrom"] == [{"secretRef": {"name": "object-store"}}]
        check_schema(one, newest_versions(1)[0])
        assert {"name": "ROLECALL_DATA_SCHEMES", "value": "s3"} in container(one)["env"]
        store = {"name": "ROLECALL_BLOB_URL", "value": "s3://my-bucket/rolecall"}
        assert (store in container(one)["env"]) == (role_of(one) == Role.MASTER)
    for kind, count in {"ServiceMonitor": 2, "PrometheusRule": 1}.items():
        labels = [one["metadata"]["labels"] for one in of_kind(objects, kind)]
        assert [one["release"] for one in labels] == count * ["RELEASE"]
    created = set(re.findall(r"create secret (?:generic|docker-registry) (\S+) ", DOCUMENT))
    assert created == {"rolecall-tokens", "rolecall-database", "rolecall-master-tls", "registry", "object-store"}


def test_the_namespace_is_there_before_its_secrets() -> None:
    first = DOCUMENT.index("kubectl apply -f k8s/base/namespace.yaml")
    assert first < DOCUMENT.index("kubectl -n rolecall create") < DOCUMENT.index("kubectl apply -k k8s/mine")


def test_the_documents_policy_lets_out_what_it_says() -> None:
    (policy,) = [block for block in BLOCKS if block.get("kind") == "NetworkPolicy"]
    check_schema(policy, newest_versions(1)[0])
    assert all(selects(policy["spec"]["podSelector"], pod_labels(one)) for one in roles(render("cpu")))


# On a line of their own, in `$(…)`, or between backquotes.
_COMMAND = re.compile(r"^kubectl .*|(?<=\()kubectl .*?(?=\)$)|(?<=`)kubectl [^`]*", re.MULTILINE)
_DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
COMMANDS = sorted({command for path in _DOCUMENTS for command in _COMMAND.findall(path.read_text())})


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_document_is_one_that_kubectl_knows(command: str) -> None:
    words = shlex.split(re.sub(r"\$\([^)]*\)", "x", command))[1:]
    if words[:1] == ["-n"]:
        assert words.pop(1) == "rolecall"
        words.pop(0)
    verbs = _verbs(words)
    described = _output("options") + _output(*verbs, "--help")
    for flag in [word.partition("=")[0] for word in words if word.startswith("-")]:
        assert re.search(rf"(?<![\w-]){re.escape(flag)}(=|,|\b)", described), f"{flag} of {command}"
    for flag, path in pairwise(words):
        if flag == "-k":
            assert (ROOT / path / "kustomization.yaml").exists() or path == _written_by_the_reader()
        assert flag != "-f" or (ROOT / path).exists()
    for kind, name in re.findall(r"\b(statefulset|deployment|service|pod)[/ ](rolecall[\w-]*)", command):
        full = {"statefulset": "StatefulSet", "deployment": "Deployment", "service": "Service"}.get(kind, "StatefulSet")
        assert named(render("cpu"), full, name.removesuffix("-0") if kind == "pod" else name)


def _written_by_the_reader() -> str:
    """The folder of the kustomization that the document has its reader write; what it holds is rendered above."""
    (written,) = set(re.findall(r"`(k8s/[\w/]+)/kustomization\.yaml`", DOCUMENT))
    return written


def _verbs(words: list[str]) -> list[str]:
    """The command and its subcommands, for example `create secret generic`."""
    groups = {"create": 3, "rollout": 2}
    return words[: groups.get(words[0], 1)]


def _output(*arguments: str) -> str:
    done = subprocess.run([program("kubectl"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
