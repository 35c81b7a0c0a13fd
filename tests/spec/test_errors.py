"""The texts of errors about several fields."""

import pytest

from rolecall.spec.errors import InvalidJob


@pytest.mark.parametrize(
    ("field", "message", "text"),
    [
        ("params.loss", "loss: mse does not fit", "params.loss: mse does not fit"),
        ("params.micro_batches", "micro_batches is 4", "params.micro_batches is 4"),
        ("params.data.label", "data.label names no column", "params.data.label names no column"),
        ("roles", "the job has no workers", "roles: the job has no workers"),
        ("params.batch", "batch_size is 4", "params.batch: batch_size is 4"),
        ("labels.a", "a name is given twice", "labels.a: a name is given twice"),
    ],
)
def test_a_text_names_each_field_once(field: str, message: str, text: str) -> None:
    errors = [{"field": field, "message": message}, {"field": "name", "message": "it shows nothing"}]
    assert str(InvalidJob(errors)) == f"{text}; name: it shows nothing"


def test_no_semicolon_follows_a_question() -> None:
    errors = [{"field": "a", "message": "did you mean 'b'?"}, {"field": "c", "message": "it is missing"}]
    assert str(InvalidJob(errors)) == "a: did you mean 'b'? c: it is missing"
