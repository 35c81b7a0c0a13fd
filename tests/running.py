"""A running master as its users see it, wherever it runs."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import httpx
import pytest

ENDED = ("succeeded", "failed", "cancelled")


def accepted(answer: httpx.Response) -> dict[str, Any]:
    """The document of a job that the master accepted. If it refused the job, the failure shows the reason."""
    assert answer.status_code == 201, answer.text
    return answer.json()


class Running(ABC):
    """The calls of tests to a cluster over HTTP."""

    client: httpx.Client

    @abstractmethod
    def logs(self) -> str:
        """The end of what every program printed."""

    def submit(self, request: dict[str, Any]) -> str:
        """Submit a job; return its id."""
        return accepted(self.client.post("/jobs", json=request))["id"]

    def job(self, job: str) -> dict[str, Any]:
        """The job's document."""
        return self.client.get(f"/jobs/{job}").raise_for_status().json()

    def wait_for(self, job: str, state: str, timeout: float = 120) -> dict[str, Any]:
        """Wait until the job is in `state`; fail with the logs when it ends otherwise or the time is over."""
        document = self.until(job, lambda one: one["state"] == state or one["state"] in ENDED, timeout)
        if document["state"] != state:
            pytest.fail(f"job {job} is not {state} but {document['state']}: {document['reason']}\n{self.logs()}")
        return document

    def until(self, job: str, holds: Callable[[dict[str, Any]], Any], timeout: float = 120) -> dict[str, Any]:
        """Poll until `holds(document)`; fail with the logs when the time is over."""
        begin = time.monotonic()
        document = None
        while (waited_s := time.monotonic() - begin) < timeout:
            document = self._job_if_up(job)
            if document and holds(document):
                return document
            # Each answer takes the master's time, which long jobs need more than a test needs to know at once.
            time.sleep(min(0.5, max(0.1, waited_s / 20)))
        pytest.fail(f"job {job}: it did not happen within {timeout} s: {document}\n{self.logs()}")

    def cancel_all(self) -> None:
        """Cancel all jobs that have not ended, and wait until they have."""
        self.await_up()
        listed = self.client.get("/jobs").raise_for_status().json()["jobs"]
        live = [job["id"] for job in listed if job["state"] not in ENDED]
        for job in live:
            answer = self.client.post(f"/jobs/{job}/cancel")
            assert answer.is_success or answer.status_code == 409, answer.text  # 409: it has ended meanwhile
        for job in live:
            self.until(job, lambda document: document["state"] in ENDED)

    def await_up(self, timeout: float = 20) -> None:
        """Wait until the master answers."""
        deadline = time.monotonic() + timeout
        while not self._is_up():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)

    def _is_up(self) -> bool:
        try:
            return self.client.get("/healthz").is_success
        except httpx.TransportError:
            return False

    def _job_if_up(self, job: str) -> dict[str, Any] | None:
        try:
            return self.job(job)
        except httpx.TransportError:
            return None  # the master is being restarted
