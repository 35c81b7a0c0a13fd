"""`transformer-pipeline` on a real cluster: the example as it is shipped, and a gang that loses a stage."""

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import expect
from safetensors.torch import load as load_tensors
from tests.cluster.browser import check_accessibility, logged_in, measure, started_browser
from tests.cluster.jobs import each_epoch, past_step, workers
from tests.conftest import Cluster, running_cluster

from rolecall.spec.inspection import TraceDocument

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

ROOT = Path(__file__).parents[2]
_USER = """
import sys
from model import load
model = load(".")
print(model.perplexity("It is a truth universally acknowledged, that a single man must be in want of a wife."))
print(model.generate("It is a truth", tokens=20), file=sys.stderr)
print("rolecall" in sys.modules)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with two stages and no other workers."""
    with running_cluster(
        tmp_path_factory.mktemp("cluster"), "--stages", "2", "--trainers", "0", "--parameter-servers", "0"
    ) as started:
        yield started


def example() -> dict[str, Any]:
    """With paths that don't depend on where the cluster was started."""
    text = (ROOT / "examples/transformer-pipeline.json").read_text()
    return json.loads(text.replace("examples/data", str(ROOT / "examples/data")))


def artifact(cluster: Cluster, job: str, name: str) -> bytes:
    return cluster.client.get(f"/jobs/{job}/artifacts/{name}").raise_for_status().content


def weights(cluster: Cluster, job: str) -> dict[str, torch.Tensor]:
    with zipfile.ZipFile(io.BytesIO(artifact(cluster, job, "model.zip"))) as archive:
        parts = [load_tensors(archive.read(name)) for name in archive.namelist() if name.endswith(".safetensors")]
    return {name: weight for part in parts for name, weight in part.items()}


def test_the_example_learns_to_write(cluster: Cluster, tmp_path: Path) -> None:
    request = example()
    request["params"]["max_steps"] = 100
    job = cluster.submit(request)
    cluster.until(job, past_step(20), 240)
    _assert_page_shows_the_pipeline(cluster, job)
    _assert_trace_has_every_task(cluster, job)
    result = cluster.wait_for(job, "succeeded", 480)["result"]
    assert result["test_loss"] < 4.8  # 6.9 before the first step: the logarithm of 1024 tokens
    times = [result[f"stage_{rank}_{kind}_s"] for rank in range(2) for kind in ("compute", "wait", "idle")]
    assert min(times) > 0
    assert result["bubble_theory"] == pytest.approx(1 / 5)
    assert 0 < result["bubble_measured"] < 1
    assert 0 < result["bubble_simulated"] < 1
    bubbles = each_epoch(cluster, job, "bubble")
    assert list(bubbles) == [1]
    assert all(0 < bubble < 1 for bubble in bubbles.values())
    assert artifact(cluster, job, "sample.txt").decode().startswith("It is a truth")
    with zipfile.ZipFile(io.BytesIO(artifact(cluster, job, "model.zip"))) as archive:
        archive.extractall(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    answer = subprocess.check_output([sys.executable, "-c", _USER], cwd=tmp_path, env=environment, text=True).split()
    assert 1 < float(answer[0]) < 200
    assert answer[1] == "False"


def _assert_page_shows_the_pipeline(cluster: Cluster, job: str) -> None:
    """Measured and theory, in the colors of the reader's mode."""
    with started_browser() as browser, logged_in(browser, cluster) as page:
        page.goto(f"{cluster.url}/ui/jobs/{job}")
        picture = page.get_by_role("img", name=f"{job}, step")
        expect(picture).to_contain_text("stage-1")
        # The example has 2 ranks and 4 micro-batches.
        expect(page.locator(".timeline .caption")).to_have_text(
            re.compile(r"Measured: bubble [0-9.]+%.* Theory: bubble 20\.0%, duration 15 forward passes\.")
        )
        # In one call, because the page replaces the picture.
        found = "document.querySelector('.timeline .picture').shadowRoot.querySelectorAll('rect.F-0')"
        bars = page.evaluate(f"[...{found}].map(bar => getComputedStyle(bar).fill)")
        assert (len(bars), len(set(bars))) == (2 * 2 * 4 + 1, 1), "each task twice, and the legend"
        page.emulate_media(color_scheme="dark")
        dark = measure(picture.locator("rect.F-0").first, "getComputedStyle(one).fill")
        assert dark not in [*bars, "rgb(0, 0, 0)"]
        check_accessibility(page)
        expect(page.locator(".timeline .caption")).to_be_hidden()
        page.set_viewport_size({"width": 380, "height": 760})
        expect(page.locator(".timeline .caption")).to_be_visible()  # The picture doesn't fit.
        page.get_by_role("link", name="Open the picture").click()  # The policy must allow its style, too.
        assert measure(page.locator("rect.F-0").first, "getComputedStyle(one).fill") == dark


def _assert_trace_has_every_task(cluster: Cluster, job: str) -> None:
    """Of both ranks, with the fields that viewers of Chrome's trace format need."""
    answer = cluster.client.get(f"/jobs/{job}/timeline", params={"format": "trace"}).raise_for_status()
    trace = TraceDocument.model_validate_json(answer.content)
    assert (trace.other["job"], trace.other["silent"]) == (job, {})
    names = {(event["pid"], event["tid"]) for event in trace.events if event["name"] == "thread_name"}
    done = [event for event in trace.events if event["ph"] == "X"]
    assert {(event["pid"], event["tid"]) for event in done} <= names
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in done)
    tasks = {(event["pid"], event["cat"], event["name"]) for event in done}
    # The example has 4 micro-batches.
    assert tasks >= {(rank, "compute", f"{kind} {number}") for rank in (0, 1) for kind in "FB" for number in range(4)}


def exact_job(folder: Path) -> dict[str, Any]:
    """Small, with dropout, epochs of about 40 steps, and a checkpoint every 20."""
    job = example()
    book = gzip.decompress(Path(job["params"]["text"]["train"][0]).read_bytes())
    (folder / "text.txt").write_bytes(book[:80_000])
    job["params"] |= {"max_steps": 160, "epochs": 10, "layers": 2, "dim": 16, "heads": 2, "context": 32, "dropout": 0.2}
    job["params"] |= {"checkpoint_every_steps": 20, "checkpoint_every_s": None, "sample": {"tokens": 0}}
    job["params"]["text"] |= {"vocabulary": 300, "test": None, "train": str(folder / "text.txt")}
    return job


def test_a_killed_stage_costs_an_attempt_and_not_the_result(cluster: Cluster, tmp_path: Path) -> None:
    request = exact_job(tmp_path)
    undisturbed = cluster.submit(request)
    cluster.wait_for(undisturbed, "succeeded", 240)
    bubbles = each_epoch(cluster, undisturbed, "bubble")
    assert len(bubbles) > 2
    assert list(bubbles) == list(range(1, len(bubbles) + 1))
    assert all(0 < bubble < 1 for bubble in bubbles.values())
    job = cluster.submit(request)
    gang = workers(cluster.until(job, past_step(25)))
    os.kill(gang["stage-1"]["pid"], signal.SIGKILL)
    document = cluster.wait_for(job, "succeeded", 240)
    assert f"stage-1 on {gang['stage-1']['node']}: killed by SIGKILL" in document["attempts"][0]["cause"]
    assert "resumed from the checkpoint at step" in cluster.client.get(f"/jobs/{job}/events").text
    torch.testing.assert_close(weights(cluster, job), weights(cluster, undisturbed), rtol=0, atol=0)


def test_what_is_not_legal_is_refused_with_what_is(cluster: Cluster) -> None:
    job = example()
    job["params"] |= {"schedule": "DualPipeV", "micro_batches": 2}
    answer = cluster.client.post("/jobs", json=job)
    assert answer.status_code == 422
    assert "nearest valid for batches of 32: 4" in answer.text
