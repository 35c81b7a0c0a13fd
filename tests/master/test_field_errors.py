"""Problems of fields with several forms; `test_api.py` has the others, as users get them."""

from typing import Annotated, Any

import pytest
from pydantic import ValidationError, WrapValidator

from rolecall.master.field_errors import explain
from rolecall.spec.workload import Params


class _Files(Params):
    train: str
    test: str = ""
    skip: int = 0


class _Random(Params):
    rows: int
    skip: int = 0


def _choose(given: Any, _: Any) -> Params:
    return (_Random if "rows" in given else _Files).model_validate(given)


class _Job(Params):
    data: Annotated[_Files | _Random, WrapValidator(_choose)]


def test_an_unknown_field_of_one_form_names_those_of_all_forms() -> None:
    with pytest.raises(ValidationError) as caught:
        _Job.model_validate({"data": {"train": "a", "tets": "b"}})
    (problem,) = explain(caught.value.errors(), _Job.model_json_schema(), ("params",))
    assert problem == {
        "field": "params.data.tets",
        "message": "there is no field 'tets'; did you mean 'test'?",
        "given": '"tets"',
        "legal": "rows, skip, test, train",
    }
