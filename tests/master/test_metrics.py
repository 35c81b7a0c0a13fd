"""A scrape of the master costs the same however large the jobs are, and holds up nobody."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, event

from rolecall.master import metrics
from rolecall.master.placement import Seating
from rolecall.spec.plan import WorkerPlan
from rolecall.spec.state import WorkerState

from .harness import ONE_TRAINER, Client, line, on_master, one_trainer


async def scraped(client: Client) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """The samples of `/metrics` by name and labels."""
    text = (await client.user("GET", "/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for sample in samples:
        found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


async def test_a_scrape_reads_no_parameters_and_computes_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    computed: list[threading.Thread] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    class Cluster(metrics.Cluster):
        def seating(self, taken: Sequence[WorkerPlan]) -> Seating:
            computed.append(threading.current_thread())
            return super().seating(taken)

    async with on_master(tmp_path) as client:
        node = await one_trainer(client, slots=1)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await client.until(job, "running")
        await client.submit(roles=ONE_TRAINER)
        before = await scraped(client)
        assert before["rolecall_job_step"] == {frozenset({("job", job), ("workload", "toy")}): 0.0}
        await node.progress(worker, line("step", step=7))
        monkeypatch.setattr(metrics, "Cluster", Cluster)
        event.listen(Engine, "before_cursor_execute", note)
        try:
            found = await scraped(client)
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        assert list(found["rolecall_job_step"].values()) == [7.0]
        assert list(found["rolecall_queue_depth"].values()) == [1.0]
        assert 0 < next(iter(found["rolecall_queue_oldest_age_seconds"].values())) < 60
        assert sum(found["rolecall_slots"].values()) == 1
        assert sum(found["rolecall_slots_free"].values()) == 0
        loops = {dict(labels)["loop"]: idle_s for labels, idle_s in found["rolecall_loop_idle_seconds"].items()}
        assert loops.keys() == {"reconciler", "placer", "cleaner", "notifier", "verifier"}
        assert max(loops.values()) < 60
    assert asked
    assert not [statement for statement in asked if "params" in statement]
    assert computed
    assert threading.main_thread() not in computed
