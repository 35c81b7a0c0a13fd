"""Several observers' requests are answered together, and none waits too long."""

import queue
import threading
from collections.abc import Callable

import pytest
import torch

from rolecall.workloads.reinforce import remote
from rolecall.workloads.reinforce.model import Policy
from rolecall.workloads.reinforce.remote import Inference, act

DESCRIPTION = {
    "observation": {"shape": [4]},
    "action": {"count": 2, "start": 0},
    "policy": {"name": "mlp", "hidden": [8], "activation": "tanh", "dropout": 0.0, "initialization": "orthogonal"},
    "normalize": False,
    "precision": "float32",
}


class Counting(Policy):
    """Notes how many observations each forward pass has."""

    def __init__(self) -> None:
        super().__init__(DESCRIPTION)
        self.passes: list[int] = []

    def sample_actions(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.passes.append(len(observations))
        return super().sample_actions(observations)


@pytest.fixture(autouse=True)
def no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_requests", queue.SimpleQueue())


def made(policy: Policy, batch_size: Callable[[], int], deadline_s: float) -> Inference:
    serving = Inference(policy, torch.device("cpu"), batch_size, deadline_s)
    for observer in range(2):
        serving.start_trajectory(observer)
    return serving


def test_one_pass_answers_as_many_as_are_enough() -> None:
    policy = Counting()
    serving = made(policy, lambda: 2, 60.0)
    with serving.serving():
        replies = [act(0, torch.zeros(3, 4)), act(1, torch.ones(5, 4))]
        assert [len(reply.wait()) for reply in replies] == [3, 5]
        assert policy.passes == [8]
        replies = [act(0, torch.zeros(1, 4)), act(1, torch.full((2, 4), 2.0))]  # Fewer environments act.
        assert [len(reply.wait()) for reply in replies] == [1, 2]
    agent_outputs = serving.agent_outputs(1)
    assert agent_outputs.observations[:, 0].tolist() == [1, 1, 1, 1, 1, 2, 2]
    assert agent_outputs.actions.shape == agent_outputs.log_probs.shape == (7,)


def test_a_deadline_ends_the_waiting() -> None:
    policy = Counting()
    with made(policy, lambda: 2, 0.001).serving():
        assert len(act(0, torch.zeros(3, 4)).wait()) == 3
    assert policy.passes == [3]


def test_what_ends_the_thread_is_raised_where_it_is_asked_for() -> None:
    serving = made(Counting(), lambda: 1, 0.0)
    with serving.serving():
        serving.check()
        act(0, torch.zeros(3, 9))
        ended = threading.Event()
        serving._serving.add_done_callback(lambda _: ended.set())  # type: ignore[union-attr]
        assert ended.wait(10)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            serving.check()


def test_it_decides_with_the_weights_it_is_given() -> None:
    policy = Counting()
    serving = made(policy, lambda: 1, 0.0)
    weights = {name: torch.zeros_like(value) for name, value in policy.state_dict().items()}
    serving.load_weights(weights | {"network.actor.2.bias": torch.tensor([-100.0, 100.0])})
    with serving.serving():
        assert act(0, torch.zeros(50, 4)).wait().tolist() == [1] * 50
