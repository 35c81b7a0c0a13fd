"""The objects that `kubectl apply -k` would send, as Kubernetes reads them: selectors, pods, network policies."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from tests.prerequisites import unavailable

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
RDMA = "gpu-rdma"
"""The overlay `gpu` with a few changes, which one test lists; the other tests hold for both then."""
OVERLAYS = sorted({path.name for path in (K8S / "overlays").iterdir()} - {RDMA})
COMPONENTS = sorted(path.name for path in (K8S / "components").iterdir())
WORKLOAD_KINDS = {"Deployment", "StatefulSet"}

Object = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """A pod as the network sees it."""

    labels: dict[str, str]
    namespace: str = "rolecall"


def program(name: str, *elsewhere: Path) -> str:
    """The path of a program. Without it the test is skipped, but fails in CI, where `.ci/run` installs it."""
    for path in (shutil.which(name), *elsewhere):
        if path and Path(path).exists():
            return str(path)
    unavailable(f"{name} is not installed; .ci/run installs it where apt-get and pip can")


def check_schema(one: Object, version: str) -> None:
    """Assert that an object is what Kubernetes of this version, for example `1.37`, takes."""
    assert schemas().validate(one, f"{version}.0", strict=True) == version


def schemas() -> Any:
    """The package of Kubernetes' schemas."""
    try:
        return import_module("kubernetes_validate")
    except ModuleNotFoundError:
        unavailable("kubernetes-validate is not installed; it is in the dependency group `dev`")


def newest_versions(count: int) -> list[str]:
    """The newest minor versions that there are schemas of."""
    minors = {tuple(map(int, version.split(".")[:2])) for version in schemas().utils.all_versions()}
    return [f"{major}.{minor}" for major, minor in sorted(minors)[-count:]]


@cache
def render(overlay: str, components: tuple[str, ...] = ()) -> tuple[Object, ...]:
    """All objects of an overlay with these components."""
    return render_kustomization(
        {
            "resources": [f"overlays/{overlay}"],
            "components": [f"components/{name}" for name in components],
        }
    )


def render_kustomization(kustomization: dict[str, Any], base: Path = K8S) -> tuple[Object, ...]:
    """All objects of a kustomization whose paths start at `base`."""
    with TemporaryDirectory() as folder:
        there = os.path.relpath(base, Path(folder).resolve())
        moved = {key: [f"{there}/{path}" for path in kustomization.get(key, [])] for key in ("resources", "components")}
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(kustomization | moved))
        return build(Path(folder))


def build(folder: Path) -> tuple[Object, ...]:
    """`kubectl kustomize`; what it says fails the test."""
    done = subprocess.run([program("kubectl"), "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return load_objects(done.stdout)


def load_objects(text: str) -> tuple[Object, ...]:
    """The objects of YAML documents that a program printed, read by libyaml where that is compiled in."""
    return tuple(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def everything(overlay: str) -> tuple[Object, ...]:
    """An overlay with all components at once."""
    return render(overlay, tuple(COMPONENTS))


def of_kind(objects: tuple[Object, ...], *kinds: str) -> list[Object]:
    """Those of `objects` that have one of the kinds."""
    return [one for one in objects if one["kind"] in kinds]


def named(objects: tuple[Object, ...], kind: str, name: str) -> Object:
    """The one object of that kind and name."""
    (found,) = [one for one in of_kind(objects, kind) if one["metadata"]["name"] == name]
    return found


def workloads(objects: tuple[Object, ...]) -> list[Object]:
    """The objects that start pods."""
    return of_kind(objects, *WORKLOAD_KINDS)


def roles(objects: tuple[Object, ...]) -> list[Object]:
    """The objects that start pods of Rolecall's own images."""
    return [one for one in workloads(objects) if pod_labels(one)["app.kubernetes.io/name"] == "rolecall"]


def role_of(workload: Object) -> str:
    """The role that a workload's pods play, by their label."""
    return pod_labels(workload)["app.kubernetes.io/component"]


def pod_labels(workload: Object) -> dict[str, str]:
    """The labels of its pods."""
    return workload["spec"]["template"]["metadata"]["labels"]


def pod_spec(workload: Object) -> Object:
    """The specification of its pods."""
    return workload["spec"]["template"]["spec"]


def container(workload: Object) -> Object:
    """The only container of its pods."""
    (only,) = pod_spec(workload)["containers"]
    return only


def environment(workload: Object) -> dict[str, str]:
    """The container's environment, as it is when the pod runs."""
    labels = {f"metadata.labels['{name}']": value for name, value in pod_labels(workload).items()}
    fields = labels | {"status.podIP": "10.1.2.3"}
    given = container(workload).get("env", [])
    return {e["name"]: e["value"] if "value" in e else fields[e["valueFrom"]["fieldRef"]["fieldPath"]] for e in given}


def ports(workload: Object) -> dict[str, int]:
    """The container's ports by name."""
    return {port["name"]: port["containerPort"] for port in container(workload)["ports"]}


def port_range(workload: Object) -> range:
    """The ports on which its workers listen."""
    (sysctl,) = pod_spec(workload)["securityContext"]["sysctls"]
    assert sysctl["name"] == "net.ipv4.ip_local_port_range"
    first, last = map(int, sysctl["value"].split())
    return range(first, last + 1)


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """True if a label selector, of which only `matchLabels` is used here, picks something with these labels."""
    assert selector.keys() <= {"matchLabels"}, selector
    return selector.get("matchLabels", {}).items() <= labels.items()


def may_talk(objects: tuple[Object, ...], source: Pod, target: Pod, port: int) -> bool:
    """True if the network policies let `source` open a TCP connection to `port` of `target`."""
    return _lets(objects, source, "Egress", target, port) and _lets(objects, target, "Ingress", source, port)


def _lets(objects: tuple[Object, ...], pod: Pod, direction: str, other: Pod, port: int) -> bool:
    policies = [
        policy["spec"]
        for policy in of_kind(objects, "NetworkPolicy")
        if policy["metadata"]["namespace"] == pod.namespace
        and direction in policy["spec"]["policyTypes"]
        and selects(policy["spec"]["podSelector"], pod.labels)
    ]
    rules = [rule for policy in policies for rule in policy.get(direction.lower(), [])]
    return not policies or any(_matches(rule, direction, pod, other, port) for rule in rules)


def _matches(rule: Object, direction: str, pod: Pod, other: Pod, port: int) -> bool:
    peers = rule["from" if direction == "Ingress" else "to"]
    opened = [p for p in rule["ports"] if p["protocol"] == "TCP" and p["port"] <= port <= p.get("endPort", p["port"])]
    return bool(opened) and any(_is_peer(peer, pod, other) for peer in peers)


def _is_peer(peer: Object, pod: Pod, other: Pod) -> bool:
    same = other.namespace == pod.namespace
    name = {"kubernetes.io/metadata.name": other.namespace}
    there = selects(peer["namespaceSelector"], name) if "namespaceSelector" in peer else same
    return there and selects(peer.get("podSelector", {}), other.labels)
