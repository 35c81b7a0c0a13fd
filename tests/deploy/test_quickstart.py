"""`k8s/quickstart` writes an overlay and applies what the documentation says; no cluster is asked."""

import os
import shutil
import subprocess
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.manifests import K8S, load_objects, program, render

from rolecall.spec.role import Role


def quickstart(*options: str) -> subprocess.CompletedProcess[str]:
    program("kubectl")
    return subprocess.run([K8S / "quickstart", *options], capture_output=True, text=True, check=False)


def printed(folder: Path, *options: str) -> list[dict[str, Any]]:
    done = quickstart("--print", "--directory", str(folder), *options)
    assert done.returncode == 0, done.stderr
    return [one for one in load_objects(done.stdout) if one]


def secrets(objects: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    found = [one for one in objects if one["kind"] == "Secret"]
    return {
        one["metadata"]["name"]: {key: b64decode(value).decode() for key, value in one["data"].items()} for one in found
    }


@pytest.mark.slow
def test_it_applies_the_overlay_with_images_and_secrets(tmp_path: Path) -> None:
    chosen = ("--overlay", "single-node", "--component", "postgres")
    objects = printed(tmp_path, "--registry", "registry.example.com/team", "--tag", "1.2", *chosen)
    tokens, database = secrets(objects)["rolecall-tokens"], secrets(objects)["rolecall-database"]
    assert set(tokens) == {"token", "node-token", "metrics-token"}
    assert {len(token) for token in (*tokens.values(), database["password"])} == {64}
    assert len(set(tokens.values())) == len(tokens)
    assert database["url"] == f"postgresql://rolecall:{database['password']}@rolecall-postgres/rolecall"
    names = [(one["kind"], one["metadata"]["name"]) for one in objects if one["kind"] != "Secret"]
    plain = render("single-node", ("postgres",))
    assert sorted(names) == sorted(
        [("Namespace", "rolecall"), *((one["kind"], one["metadata"]["name"]) for one in plain)]
    )
    pods = [one["spec"]["template"]["spec"] for one in objects if one["kind"] in {"Deployment", "StatefulSet"}]
    images = {container["image"] for pod in pods for container in pod["containers"]}
    assert {f"registry.example.com/team/rolecall-{role}:1.2" for role in Role} < images


@pytest.mark.slow
def test_an_overlay_and_its_settings_are_kept(tmp_path: Path) -> None:
    printed(tmp_path, "--registry", "local", "--component", "postgres")
    before = (tmp_path / "kustomization.yaml").read_text()
    assert "images:" not in before
    assert set(secrets(printed(tmp_path, "--registry", "other.example.com"))) == {
        "rolecall-tokens",
        "rolecall-database",
    }
    assert (tmp_path / "kustomization.yaml").read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "is_used"),
    [
        ("- {}", True),
        ('  -  "{}/" # The database', True),
        ("# - {}", False),
        ("  # see {}", False),
    ],
)
def test_only_an_entry_uses_a_component(tmp_path: Path, entry: str, is_used: bool) -> None:
    overlay, component = (os.path.relpath(K8S / part, tmp_path) for part in ("overlays/cpu", "components/postgres"))
    kustomization = f"resources:\n  - {overlay}\ncomponents:\n{entry.format(component)}\n"
    (tmp_path / "kustomization.yaml").write_text(kustomization)
    assert ("rolecall-database" in secrets(printed(tmp_path))) is is_used


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "name your registry"),
        (("--registry",), "--registry needs a value"),
        (("--registry", 'x"\n  - name: y'), "the registry and the tag can have"),
        (("--registry", "x", "--overlay", "large"), "unknown overlay large; use one of: cpu gpu gpu-rdma single-node"),
        (("--registry", "x", "--overlay", ".."), "unknown overlay ..; use one of"),
        (("--registry", "x", "--component", "tls"), "docs/kubernetes.md describes it"),
        (("--registry", "x", "--component", "redis"), "use postgres, monitoring or datasets"),
        (("--fast",), "unknown option --fast"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_written(
    tmp_path: Path, options: tuple[str, ...], problem: str
) -> None:
    done = quickstart("--directory", str(tmp_path / "mine"), *options)
    assert done.returncode == 2
    assert problem in done.stderr
    assert not (tmp_path / "mine").exists()


KUBECTL = """#!/bin/sh
# Only the answers of the API server are scripted.
echo "$*" >>"$FOLDER/calls"
case "$*" in
  *--dry-run=client* | kustomize*) exec REAL "$@" ;;
  "get --raw /version") printf '{\n  "major": "1",\n  "minor": "%s"\n}' "${MINOR:-30+}" ;;
  *"get secret"*) grep --quiet "name: $5" "$FOLDER/created" 2>/dev/null ;;
  "create --filename=-") cat >>"$FOLDER/created" ;;
  "apply --kustomize="*) exec REAL kustomize "${2#*=}" >"$FOLDER/applied" ;;
esac
"""


def scripted(folder: Path, **more: str) -> dict[str, str]:
    """An environment with the scripted kubectl."""
    program("kubectl")
    stub = folder / "bin" / "kubectl"
    stub.parent.mkdir()
    stub.write_text(KUBECTL.replace("REAL", str(shutil.which("kubectl"))))
    stub.chmod(0o755)
    return os.environ | {"PATH": f"{stub.parent}:{os.environ['PATH']}", "FOLDER": str(folder)} | more


@pytest.mark.slow
def test_it_starts_everything_in_order_and_keeps_secrets_the_second_time(tmp_path: Path) -> None:
    environment = scripted(tmp_path)
    command = [K8S / "quickstart", "--registry", "local", "--component", "postgres", "--directory", tmp_path / "mine"]
    said: list[str] = []
    for _ in range(2):
        (tmp_path / "calls").write_text("")
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        said.append(done.stderr)
        *before, last = [call for call in (tmp_path / "calls").read_text().splitlines() if "rollout" not in call]
        assert before[1] == "get --raw /version"
        assert before[2].startswith("apply --filename=")
        assert before[2].endswith("base/namespace.yaml")
        assert last == f"apply --kustomize={tmp_path / 'mine'}"
        waited = [call.split("/")[1].split()[0] for call in (tmp_path / "calls").read_text().splitlines()[-5:]]
        assert waited == [f"rolecall-{role}" for role in ("master", "parameter-server", "trainer", "stage", "observer")]
        assert "export ROLECALL_URL=http://127.0.0.1:8080\n  export ROLECALL_TOKEN=" in done.stdout
    created = [
        one for one in load_objects((tmp_path / "created").read_text().replace("apiVersion", "---\napiVersion")) if one
    ]
    assert secrets(created).keys() == {"rolecall-tokens", "rolecall-database"}
    assert ["keeping the secret" in text for text in said] == [False, True]
    assert any(one and one["kind"] == "StatefulSet" for one in load_objects((tmp_path / "applied").read_text()))


def test_a_cluster_that_is_too_old_is_refused_before_anything_is_applied(tmp_path: Path) -> None:
    command = [K8S / "quickstart", "--registry", "local", "--directory", str(tmp_path / "mine")]
    environment = scripted(tmp_path, MINOR="29")
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    assert "the cluster has Kubernetes 1.29; it must be 1.30 or newer" in done.stderr
    assert "apply" not in (tmp_path / "calls").read_text()


@pytest.mark.slow
def test_with_tls_it_prints_what_a_client_needs_for_https(tmp_path: Path) -> None:
    environment, folder = scripted(tmp_path), tmp_path / "mine"
    folder.mkdir()
    parts = ("overlays/single-node", "components/tls")
    overlay, component = (os.path.relpath(K8S / part, folder) for part in parts)
    (folder / "kustomization.yaml").write_text(f"resources:\n  - {overlay}\ncomponents:\n  - {component}\n")
    command = [K8S / "quickstart", "--registry", "local", "--directory", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert 'export ROLECALL_URL=https://127.0.0.1:8080 ROLECALL_TLS_CA="$PWD/rolecall-ca.crt"' in done.stdout
    assert "ROLECALL_TLS_NAME=rolecall-master" in done.stdout
    assert "http://" not in done.stdout


def test_without_a_cluster_it_asks_for_a_context(tmp_path: Path) -> None:
    program("kubectl")
    command = [K8S / "quickstart", "--registry", "local", "--directory", str(tmp_path)]
    own = {name: value for name, value in os.environ.items() if name != "KUBERNETES_SERVICE_HOST"}
    own |= {"HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "none")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=own)
    assert (done.returncode, "has no current context" in done.stderr) == (2, True)
