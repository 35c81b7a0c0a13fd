# pyright: standard
"""Look-ups request each distinct row once, and their backward pass sums the gradients of equal ids."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor
from torch.futures import Future

from rolecall.kit.parameter_server.lookup import distinct_rows, hand_over, request_rows

ROWS, DIM = 11, 3


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (4, 5)])
def test_vectors_and_gradients_are_those_of_an_embedding(count: int, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(ROWS, DIM, dtype=torch.float64, generator=generator, requires_grad=True)
    ids = torch.randint(ROWS, shape, generator=generator)
    weights = torch.randn(*shape, DIM, dtype=torch.float64, generator=generator)
    received = torch.zeros(ROWS, DIM, dtype=torch.float64)
    wanted = distinct_rows(ids, count)

    class Answer:
        def __init__(self, numbers: Tensor) -> None:
            self._numbers = numbers

        def wait(self) -> Tensor:
            def receive(gradient: Tensor) -> None:
                received[self._numbers] += gradient

            return hand_over(table.detach()[self._numbers], receive)

    asked: list[Tensor] = []

    def request(shard: int, rows: Tensor) -> Answer:
        asked.append(rows * count + shard)
        return Answer(asked[-1])

    vectors = request_rows(wanted, request).expand()
    (vectors * weights).sum().backward()
    expected = F.embedding(ids, table)
    (expected * weights).sum().backward()
    assert len(asked) == count
    assert sorted(torch.cat(asked).tolist()) == sorted(set(ids.flatten().tolist()))
    torch.testing.assert_close(vectors, expected, rtol=0, atol=0)
    torch.testing.assert_close(received, table.grad, rtol=0, atol=1e-12)


def test_a_reply_can_be_a_future() -> None:
    reply: Future[Tensor] = Future()
    reply.set_result(torch.ones(1, DIM))
    requested = request_rows(distinct_rows(torch.tensor([4, 4]), 1), lambda _shard, _rows: reply)
    assert requested.expand().tolist() == [[1.0] * DIM] * 2
