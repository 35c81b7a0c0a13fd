"""`/docs` is served whole by the master, and a browser that obeys its policy shows it."""

import asyncio
import json
import re
import subprocess
from pathlib import Path

import pytest
from tests.chromium import steady_chromium
from tests.master.harness import TOKEN, bearer, make_settings, serving


async def test_every_answer_has_the_policy(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        calls = [
            await client.http.get("/healthz"),
            await client.http.get("/docs"),
            await client.user("GET", "/docs"),
            await client.user("POST", "/jobs", content=b"{"),
            await client.user("GET", "/nowhere"),
        ]
        assert [call.status_code for call in calls] == [200, 401, 200, 400, 404]
        for call in calls:
            policy = call.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self' 'sha256-")
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert call.headers["x-content-type-options"] == "nosniff"
            assert call.headers["referrer-policy"] == "no-referrer"
            assert "server" not in call.headers


async def test_the_page_loads_what_the_master_serves_and_nothing_else(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        page = (await client.user("GET", "/docs")).text
        assert "<script>" not in page
        assert "://" not in page
        sources = re.findall(r'<(?:link|script)[^>]* (?:src|href)="([^"]+)"', page)
        for source in [one for one in sources if not one.startswith("data:")]:
            assert (await client.http.get(f"/{source}")).status_code == 401
            served = await client.user("GET", f"/{source}")
            assert served.is_success
            assert served.headers["content-type"].split(";")[0] in {"text/javascript", "text/css"}


@pytest.mark.slow
async def test_a_browser_shows_the_operations_without_a_foreign_request(tmp_path: Path) -> None:
    browser = steady_chromium(tmp_path)
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--log-net-log={tmp_path / 'net.json'}",
        "--virtual-time-budget=20000",
        "--dump-dom",
    ]
    async with serving(make_settings(tmp_path)) as client:
        url = f"http://me:{TOKEN}@127.0.0.1:{client.http.base_url.port}/docs"
        process = await asyncio.create_subprocess_exec(
            browser, *options, url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        page, log = await asyncio.wait_for(process.communicate(), 120)
        assert "Content Security Policy" not in log.decode(), log.decode()
        assert (await client.user("GET", "/openapi.json", headers=bearer(TOKEN))).is_success
    shown = page.decode()
    assert shown.count('class="opblock ') > 15, shown[:2000]
    assert "Submit a job" in shown
    events = json.loads((tmp_path / "net.json").read_text())["events"]
    asked = {event["params"]["url"] for event in events if "url" in event.get("params", {})}
    hosts = {re.sub(r"^\w+://(?:[^@/]*@)?([^:/]+).*$", r"\1", url) for url in asked if url.startswith("http")}
    assert hosts == {"127.0.0.1"}
