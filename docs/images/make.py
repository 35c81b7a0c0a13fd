"""Makes the pictures of the README: `.venv/bin/python -m docs.images.make`, in the project's folder, with Chromium.

Starts a cluster on this machine, submits the examples, and takes about two minutes.
"""

import io
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from tests.chromium import find_chromium

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
_LOCAL = ("local", "--port", "0", "--stages", "2", "--observers", "0", "--json")
_COLORS = 128
_FRAMES, _FRAME_MS = 16, 400
_WAIT_S = 120


def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        command = [str(ROOT / ".venv/bin/rolecall"), *_LOCAL, "--data", data]
        token = token_urlsafe()
        own = os.environ | {"ROLECALL_TOKEN": token, "XDG_CONFIG_HOME": data}
        process = subprocess.Popen(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, text=True)  # noqa: S603 - ours
        try:
            assert process.stdout
            connection = json.loads(process.stdout.readline())
            with httpx.Client(base_url=connection["url"], headers={"Authorization": f"Bearer {token}"}) as client:
                _take_all(client, token)
        finally:
            process.terminate()
            process.wait(60)


def _take_all(client: httpx.Client, token: str) -> None:
    url = str(client.base_url).rstrip("/")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto(url)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        census = _submit(client, "embedding-ddp", "census")
        smaller = _submit(client, "embedding-ddp", "census, dim 8", embedding_dim=8)
        pipeline = _submit(client, "transformer-pipeline", "austen")
        _submit(client, "resnet-pipeline", "fashion")
        _record(page, f"{url}/ui/jobs/{pipeline}", IMAGES / "curve.gif")
        _wait(client, smaller, lambda job: job["state"] == "succeeded")
        _submit(client, "rnn-lm", "austen, LSTM")
        _submit(client, "embedding-ddp", "census, later")
        _wait(client, pipeline, lambda job: job["progress"]["step"] > 100)
        _take(page, url, IMAGES / "overview.png")
        _take(page, f"{url}/ui/jobs/{pipeline}", IMAGES / "job.png", until=".timeline:not([hidden])")
        _take(page, f"{url}/ui/compare?job={census}&job={smaller}", IMAGES / "compare.png", until=".u-legend")
        browser.close()


def _submit(client: httpx.Client, workload: str, name: str, **params: Any) -> str:
    job = json.loads((ROOT / "examples" / f"{workload}.json").read_text()) | {"name": name}
    job["params"] |= params
    return client.post("/jobs", json=job).raise_for_status().json()["id"]


def _wait(client: httpx.Client, job: str, is_reached: Callable[[dict[str, Any]], bool]) -> None:
    end = time.monotonic() + _WAIT_S
    while not is_reached(document := client.get(f"/jobs/{job}").json()):
        if document["state"] == "failed" or time.monotonic() > end:
            raise RuntimeError(f"{job} is {document['state']}: {document['reason']}")
        time.sleep(0.2)


def _take(page: Page, url: str, path: Path, *, until: str = "h1") -> None:
    """The page down to its log, because the rest is the same everywhere."""
    page.goto(url)
    page.locator(until).first.wait_for(state="attached")
    page.wait_for_timeout(1500)
    ends = "sections => Math.max(...sections.map(one => one.getBoundingClientRect().bottom + scrollY))"
    height = page.locator("main section:not(:has(.log))").evaluate_all(ends)
    image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    image = image.crop((0, 0, image.width, min(image.height, int(height) + 16)))
    image.quantize(_COLORS * 2, dither=Image.Dither.NONE).save(path, optimize=True)


def _record(page: Page, url: str, path: Path) -> None:
    """The curves of a job that trains, whenever they have moved."""
    page.goto(url)
    section = page.locator("section:has(> .curves)")
    page.locator(".curves canvas").first.wait_for(timeout=_WAIT_S * 1000)
    frames: list[Image.Image] = []
    before = 0
    for _ in range(_FRAMES):
        page.wait_for_function("before => document.querySelector('.curves').dataset.points > before", arg=before)
        before = int(page.locator(".curves").get_attribute("data-points") or 0)
        frame = Image.open(io.BytesIO(section.screenshot())).convert("RGB")
        frames.append(frame.resize((800, round(frame.height * 800 / frame.width)), Image.Resampling.LANCZOS))
    height = max(frame.height for frame in frames)
    frames = [frame for frame in frames if frame.height == height]
    palette = frames[-1].quantize(_COLORS, dither=Image.Dither.NONE)
    shown = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    shown[0].save(
        path, save_all=True, append_images=shown[1:], duration=[_FRAME_MS] * (len(shown) - 1) + [2500], loop=0
    )


if __name__ == "__main__":
    main()
