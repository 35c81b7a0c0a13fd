"""Tables whose rows lie on several servers: row `i` of the whole is row `i // count` of shard `i % count`."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor
from torch.futures import Future


def look_up(ids: Tensor, count: int, ask: Callable[[int, Tensor], Future[Tensor]]) -> Tensor:
    """The vectors [..., dim] of the ids [...] in a table of `count` shards; on the device of the shards' answers.

    `ask(shard, rows)` gives the vectors of a shard's own row numbers. Each distinct id crosses the wire once. A shard
    without a row among them is asked all the same: its optimizer must count the step.
    """
    distinct, inverse = torch.unique(ids, return_inverse=True)
    owners = distinct % count
    by_owner = torch.argsort(owners, stable=True)
    sizes = torch.bincount(owners, minlength=count).tolist()
    wanted = (distinct[by_owner] // count).split(sizes)
    answers = [ask(shard, rows) for shard, rows in enumerate(wanted)]
    vectors = torch.cat([answer.wait() for answer in answers])
    place = torch.empty_like(by_owner)
    place[by_owner] = torch.arange(len(by_owner))
    return F.embedding(place[inverse].to(vectors.device), vectors)
