"""The declarations of workloads follow the rules of Prometheus."""

import pytest

from rolecall.kit import EVALUATED, Metric, Split
from rolecall.kit.declarations import CLASSIFIER, TRAINING
from rolecall.spec.metric import MAX_DECLARED, WORKER_METRICS, MetricPlace, index_in, places


def test_a_metric_is_reported_by_its_name_and_split() -> None:
    found = places([*TRAINING, *CLASSIFIER])
    assert found["loss"] == MetricPlace("loss", Split.TRAIN)
    assert found["validation_loss"] == MetricPlace("loss", Split.VALIDATION)
    assert found["test_accuracy"] == MetricPlace("accuracy", Split.TEST)


def test_an_indexed_metric_matches_every_number_and_stays_out_of_prometheus() -> None:
    metric = Metric("observer_{index}_return", "Its return.")
    assert index_in("observer_17_return", metric.name) == "17"
    assert index_in("observer__return", metric.name) is None
    assert places([metric]) == {}


@pytest.mark.parametrize("name", ["", "Loss", "1st", "_loss", "loss-mean", "loss__mean", "loss_", "a{index}", "x\n"])
def test_names_follow_the_rules(name: str) -> None:
    with pytest.raises(ValueError, match="use lowercase letters"):
        Metric(name, "Anything.")


def test_two_metrics_never_share_a_name() -> None:
    with pytest.raises(ValueError, match="two metrics are reported as 'validation_loss'"):
        places([Metric("loss", "One.", splits=EVALUATED), Metric("validation_loss", "Another.")])
    with pytest.raises(ValueError, match="at least one split"):
        Metric("loss", "None.", splits=())
    with pytest.raises(ValueError, match="declare at most"):
        places([Metric(f"m{number}", "One of many.") for number in range(MAX_DECLARED + 1)])


def test_the_metrics_of_workers_have_names_help_and_few_labels() -> None:
    assert len({one.name for one in WORKER_METRICS}) == len(WORKER_METRICS)
    for one in WORKER_METRICS:
        Metric(one.name, one.help)
        assert one.help.endswith(".")
        assert bool(one.label) == (one.values != ("",))
