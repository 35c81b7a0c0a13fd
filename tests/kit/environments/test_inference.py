# pyright: standard
"""Several observers' requests are answered together, and none waits too long."""

import queue
import threading
from collections.abc import Callable

import pytest
import torch
from tests.measured import increases, measured
from torch import Tensor, nn

from rolecall.kit.environments import inference
from rolecall.kit.environments.inference import InferenceServer, act
from rolecall.spec.metric import INFERENCE_BATCHES, INFERENCE_CALLS, INFERENCE_SECONDS

COUNTED = INFERENCE_CALLS, INFERENCE_BATCHES, INFERENCE_SECONDS


class Chooser(nn.Module):
    """Chooses the action with the larger output, and notes how many observations each forward pass has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.passes: list[int] = []

    def sample(self, observations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.passes.append(len(observations))
        log_probs, actions = self.layer(observations).log_softmax(-1).max(-1)
        return actions, log_probs, actions + 10


@pytest.fixture(autouse=True)
def no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_requests", queue.SimpleQueue())


def made(policy: Chooser, batch_size: Callable[[], int], deadline_s: float) -> InferenceServer:
    server = InferenceServer(policy, policy.sample, batch_size, deadline_s)
    for observer in range(2):
        server.start_trajectory(observer)
    return server


def test_one_pass_answers_as_many_as_are_enough() -> None:
    policy, before = Chooser(), measured(*COUNTED)
    server = made(policy, lambda: 2, 60.0)
    with server.serving():
        replies = [act(0, torch.zeros(3, 4)), act(1, torch.ones(5, 4))]
        assert [len(reply.wait()) for reply in replies] == [3, 5]
        assert policy.passes == [8]
        replies = [act(0, torch.zeros(1, 4)), act(1, torch.full((2, 4), 2.0))]  # Fewer environments act.
        assert [len(reply.wait()) for reply in replies] == [1, 2]
    requests, batches, seconds = increases(before, *COUNTED)
    assert (requests, batches) == (4, 2)
    assert 0 < seconds < 60
    agent_outputs = server.agent_outputs(1)
    assert agent_outputs.observations[:, 0].tolist() == [1, 1, 1, 1, 1, 2, 2]
    assert agent_outputs.actions.shape == agent_outputs.log_probs.shape == (7,)
    assert not agent_outputs.log_probs.requires_grad


def test_a_deadline_ends_the_waiting() -> None:
    policy, before = Chooser(), measured(*COUNTED)
    with made(policy, lambda: 2, 0.001).serving():
        assert len(act(0, torch.zeros(3, 4)).wait()) == 3
    assert policy.passes == [3]
    assert increases(before, *COUNTED)[:2] == [1, 1]


def test_what_ends_the_thread_is_raised_where_it_is_asked_for() -> None:
    server = made(Chooser(), lambda: 1, 0.0)
    with server.serving():
        server.check()
        act(0, torch.zeros(3, 9))
        ended = threading.Event()
        server._serving.add_done_callback(lambda _: ended.set())  # type: ignore[union-attr]
        assert ended.wait(10)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            server.check()


def test_it_decides_with_the_weights_it_is_given() -> None:
    policy = Chooser()
    server = made(policy, lambda: 1, 0.0)
    weights = {name: torch.zeros_like(value) for name, value in policy.state_dict().items()}
    server.load_weights(weights | {"layer.bias": torch.tensor([-100.0, 100.0])})
    with server.serving():
        assert act(0, torch.zeros(50, 4)).wait().tolist() == [11] * 50
    assert server.agent_outputs(0).actions.tolist() == [1] * 50


def test_log_probabilities_are_those_of_the_weights_that_chose() -> None:
    """An agent that does not wait for an observer gets newer weights during the observer's trajectory."""
    policy, seen = Chooser(), torch.ones(1, 4)
    server = made(policy, lambda: 1, 0.0)
    with server.serving():
        for bias in (1.0, 3.0):
            weights = {name: torch.zeros_like(value) for name, value in policy.state_dict().items()}
            server.load_weights(weights | {"layer.bias": torch.tensor([0.0, bias])})
            act(0, seen).wait()
    expected = [torch.tensor([0.0, bias]).log_softmax(-1)[1].item() for bias in (1.0, 3.0)]
    assert server.agent_outputs(0).log_probs.tolist() == pytest.approx(expected)
