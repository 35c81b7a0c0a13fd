import pytest

from rolecall.kit.same_input import require_same
from rolecall.spec.errors import InputError


def test_equal_input_passes() -> None:
    require_same({"trainer-0": "a"}, "data")
    require_same({"trainer-0": "a", "trainer-1": "a"}, "data")


def test_those_who_differ_from_the_first_are_named() -> None:
    with pytest.raises(InputError, match="trainer-1, trainer-3 and trainer-0 read different texts; the files must be"):
        require_same({"trainer-0": "a", "trainer-1": "b", "trainer-2": "a", "trainer-3": "c"}, "texts")
