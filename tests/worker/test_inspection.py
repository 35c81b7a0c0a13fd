# pyright: reportPrivateUsage=false
"""A worker's answers to inspections: bounded in size, whatever it recorded."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rolecall.runtime.timeline import Timeline
from rolecall.spec.inspection import Answer, Inspection, Kind
from rolecall.spec.workdir import Workdir
from rolecall.worker.inspection import Inspector
from rolecall.worker.main import _leave_timeline
from rolecall.worker.outputs import Outputs


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["timeline", "stacks"])
def test_an_answer_that_does_not_fit_is_an_error(tmp_path: Path, kind: Kind) -> None:
    timeline = Timeline()
    for _ in timeline.steps(iter(range(64)), first=1):
        pass
    inspector = Inspector(Workdir(tmp_path), os.open(os.devnull, os.O_WRONLY), timeline)
    with ThreadPoolExecutor(1) as pool:  # As in a worker: the calls of the answering thread are not shown.
        body = pool.submit(inspector.answer_to, Inspection(id=1, kind=kind, max_bytes=200)).result()
    answer = Answer.model_validate_json(body)
    assert "200 bytes at most" in (answer.error or "")
    assert (answer.window, answer.stacks) == (None, None)


def test_a_span_with_an_invalid_name_does_not_fail_the_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    timeline, workdir = Timeline(), Workdir(tmp_path)
    with timeline.span("übung"):
        pass
    outputs = Outputs.open(workdir)
    _leave_timeline(outputs, timeline)
    outputs.report.close()
    assert workdir.timeline.read_bytes() == b""
    assert "übung" in caplog.text
