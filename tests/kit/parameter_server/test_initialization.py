"""Every shard has its rows, with the first values that one process would have."""

import pytest
import torch

from rolecall.kit.parameter_server.initialization import (
    BLOCK_ROWS,
    Initializer,
    Normal,
    ShardSpec,
    Uniform,
    fill_standard_normal,
    initial_rows,
)

SIZES = [(5, 3), (16, 1), (17, 3), (39, 16), (65, 1000), (4096, 16)]
"""Less than a group, whole groups, and a rest; several refills of the generator."""
ROWS = BLOCK_ROWS + 4_465


@pytest.mark.parametrize("initializer", [Uniform(seed=1, bound=0.5), Normal(seed=1, std=0.5)])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_first_values_do_not_depend_on_the_shards(initializer: Initializer, count: int) -> None:
    whole = initial_rows(ShardSpec(0, 1, ROWS), 3, initializer, torch.float64)
    for index in range(count):
        part = ShardSpec(index, count, ROWS)
        assert part.size == len(range(index, ROWS, count))
        assert torch.equal(initial_rows(part, 3, initializer, torch.float64), whole[index::count])


def test_the_first_values_are_distributed_as_asked() -> None:
    whole = ShardSpec(0, 1, ROWS)
    even = initial_rows(whole, 3, Uniform(seed=2, bound=0.5), torch.float64)
    assert float(even.abs().max()) <= 0.5
    assert float(even.std()) == pytest.approx(0.5 / 3**0.5, rel=0.01)
    normal = initial_rows(whole, 3, Normal(seed=2, std=0.5), torch.float64)
    assert float(normal.std()) == pytest.approx(0.5, rel=0.01)
    assert float(normal.mean()) == pytest.approx(0.0, abs=0.01)
    assert not torch.equal(normal, initial_rows(whole, 3, Normal(seed=3, std=0.5), torch.float64))


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [0, 4, 2**63 - 1])
def test_normal_values_are_torchs(size: tuple[int, int], seed: int) -> None:
    found = fill_standard_normal(torch.empty(size, dtype=torch.float64), seed)
    expected = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.usefixtures("without_loops")
def test_missing_loops_are_not_logged_for_initial_values(caplog: pytest.LogCaptureFixture) -> None:
    fill_standard_normal(torch.empty(32, dtype=torch.float64), 0)
    assert not caplog.records
