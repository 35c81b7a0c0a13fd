"""The profile `postgres` of `compose.yaml`: the master's database in a container of its own."""

import json
import subprocess

import pytest
from tests.deploy.manifests import ROOT
from tests.deploy.stack import BASE_IMAGE, running_stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IMAGE = "rolecall-ci-postgres"


@pytest.fixture
def variables(images: None) -> dict[str, str]:
    """A small stack's, whose PostgreSQL is Debian's where Docker's can't be pulled."""
    chosen = {"COMPOSE_PROFILES": "postgres", "POSTGRES_PASSWORD": "0123456789abcdef", "STAGES": "0", "OBSERVERS": "0"}
    if not BASE_IMAGE:
        return chosen
    recipe = ["docker", "build", "--tag", IMAGE, "--build-arg", f"BASE_IMAGE={BASE_IMAGE}", "tests/deploy/postgres"]
    subprocess.run(recipe, cwd=ROOT, check=True)
    return chosen | {"POSTGRES_IMAGE": IMAGE}


def test_jobs_are_kept_in_postgresql(variables: dict[str, str]) -> None:
    example = json.loads((ROOT / "examples/embedding-ddp.json").read_text())
    with running_stack("rolecall-test-postgres", ROLECALL_CPU_SLOTS="4", **variables) as stack:
        job = stack.submit(example | {"params": example["params"] | {"max_steps": 50}})
        stack.wait_for(job, "succeeded", 120)
        query = (
            "psql",
            "--username=rolecall",
            "--tuples-only",
            "--no-align",
            "--command",
            "SELECT id, state FROM jobs",
        )
        assert stack.compose("exec", "-T", "postgres", *query).split() == [f"{job}|succeeded"]
        assert "rolecall.db" not in stack.compose("exec", "-T", "master", "ls", "--recursive", "/var/lib/rolecall")
        stack.compose("restart", "postgres", "master")
        stack.find_master()
        stack.await_up(60)
        assert stack.client.get(f"/jobs/{job}").raise_for_status().json()["state"] == "succeeded"
