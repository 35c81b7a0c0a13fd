"""The browser of the tests, while addresses of the machine come and go as they do when containers start."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.chromium import steady_chromium
from tests.prerequisites import require_namespaces

LOADS = 50
LOAD_PAGES = f"""
import http.server, subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor
from playwright.sync_api import sync_playwright

def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)

def change():
    while not ended.is_set():
        ip("link", "add", "one", "type", "veth", "peer", "two")
        ip("link", "set", "one", "up")
        ip("link", "set", "two", "up")
        for number in range(1, 20):
            ip("address", "add", f"10.9.9.{{number}}/24", "dev", "one")
        ip("link", "del", "one")

ip("link", "set", "lo", "up")
ended = threading.Event()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
with sync_playwright() as playwright, ThreadPoolExecutor(1) as thread:
    browser = playwright.chromium.launch(executable_path=sys.argv[1], args=["--no-sandbox", "--disable-gpu"])
    page, changing = browser.new_page(), thread.submit(change)
    try:
        for number in range({LOADS}):
            page.goto(f"http://127.0.0.1:{{server.server_port}}/?{{number}}")
    finally:
        ended.set()
        browser.close()
    changing.result()
"""
"""Without `steady_chromium`, three of four loads fail."""


@pytest.mark.slow
def test_no_load_fails_while_addresses_change(tmp_path: Path) -> None:
    require_namespaces("--net")
    command = ["unshare", "--net", sys.executable, "-c", LOAD_PAGES, str(steady_chromium(tmp_path))]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count(" 200 ") >= LOADS
