"""A parameter server has nothing to do but to serve calls."""

import pytest

from rolecall.kit import Stopped
from rolecall.kit.parameter_server import serve

from .conftest import WorkerContextOfTest


def test_it_returns_at_once(context: WorkerContextOfTest) -> None:
    assert serve(context) is None


def test_it_stops_if_the_job_is_to_stop(context: WorkerContextOfTest) -> None:
    context.workdir.stop.write_text("pause")
    with pytest.raises(Stopped, match="stopped before the training started"):
        serve(context)
