# pyright: standard
"""The tutorial's protocol between an agent and an observer in one process, by real RPC."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from tests.own_process import NAME, own_context, own_rpc
from torch.distributions import Categorical

from rolecall.kit.environments import creation
from rolecall.spec.role import Role
from rolecall.workloads.reinforce import remote
from rolecall.workloads.reinforce.build import Learner, new_policy
from rolecall.workloads.reinforce.model import Policy
from rolecall.workloads.reinforce.params import Params
from rolecall.workloads.reinforce.remote import Agent, Episode, Observer, RunEpisode
from rolecall.workloads.reinforce.training import Training

pytestmark = pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")
CPU = torch.device("cpu")
TUTORIAL = {
    "protocol": "tutorial",
    "algorithm": "reinforce",
    "policy_at": "agent",
    "environments": 1,
    "environment": "tests.workloads.reinforce.playgrounds:Corridor",
    "policy": {"name": "mlp", "hidden": [16], "activation": "relu", "dropout": 0.6},
    "precision": "float64",
}


class Counting(Agent):
    """Notes the calls that it gets."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy, CPU)
        self.calls: list[str] = []

    def select_action(self, observer: int, state: torch.Tensor) -> torch.Tensor:
        self.calls.append(f"select_action {observer}")
        return super().select_action(observer, state)

    def report_reward(self, observer: int, reward: float) -> None:
        self.calls.append(f"report_reward {observer}")
        super().report_reward(observer, reward)


@pytest.fixture
def params(monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.setenv("ROLECALL_BUILDERS", "tests.workloads.reinforce")
    return Params.model_validate(TUTORIAL)


@pytest.fixture
def observer(params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """RPC, in which this process is the observer, and its agent, too."""
    monkeypatch.setattr(remote, "observer_name", lambda rank: NAME)
    # Not graceful, as in the workload: the reply of an episode that failed never arrives.
    with own_context(tmp_path, params, Role.OBSERVER, monkeypatch), own_rpc(tmp_path, graceful=False):
        yield


def run_episode(agent: Agent) -> Episode:
    """One episode of the observer, whose main thread this is."""
    reply = agent.start_episode(0, seed=3)

    def run(request: object) -> None:
        assert isinstance(request, RunEpisode)
        request.run()

    remote.mailbox.answer_one(run)
    reply.wait()
    return agent.episode(0)


@pytest.mark.usefixtures("observer")
def test_an_observer_calls_twice_in_every_step(params: Params) -> None:
    agent = Counting(new_policy(params, creation.describe(params.environment)))
    agent.create_observers(1)
    (reference,) = agent._observers.values()
    assert isinstance(reference.local_value(), Observer)
    for _ in range(2):
        agent.calls.clear()
        episode = run_episode(agent)
        assert agent.calls == ["select_action 0", "report_reward 0"] * len(episode.rewards)
        assert episode.log_probs.requires_grad
        expected = [step / 5 for step in range(len(episode.rewards))]
        assert episode.observations.squeeze(1).tolist() == pytest.approx(expected)
    agent.release_observers()


@pytest.mark.usefixtures("observer")
def test_the_agents_error_is_its_own_and_not_a_lost_observers(params: Params) -> None:
    wrong = new_policy(params, {"observation": {"shape": [3]}, "action": {"count": 2, "start": 0}})
    agent = Agent(wrong, CPU)
    agent.create_observers(1)
    agent.check()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run_episode(agent)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        agent.check()
    agent.release_observers()


def test_the_gradient_is_that_of_the_units_that_selected_the_action(params: Params) -> None:
    algorithm = {"name": "reinforce", "gamma": 0.9, "normalize_advantages": False}
    chosen = TUTORIAL | {"algorithm": algorithm, "optimizer": {"name": "sgd", "lr": 1.0}, "max_grad_norm": None}
    learner = Learner(Params.model_validate(chosen), creation.describe(params.environment), CPU)
    policy = learner.policy
    agent, states = Agent(policy, CPU), torch.rand(6, 1)
    agent.begin(0)
    torch.manual_seed(5)
    actions = [agent.select_action(0, state) for state in states]
    for step in range(len(states)):
        agent.report_reward(0, float(step % 3))
    first, last = (policy.network.get_submodule(f"actor.{layer}") for layer in (0, 2))
    torch.manual_seed(5)
    gains = []
    for state, action in zip(states, actions, strict=True):
        logits = last(F.relu(F.dropout(first(state.double()), 0.6)))
        gains.append(Categorical(logits=logits).log_prob(action))
        torch.empty(1, 2, dtype=torch.float64).exponential_()  # the noise of the action
    returns = torch.tensor([0.0, 1.0, 2.0, 0.0, 1.0, 2.0], dtype=torch.float64)
    for step in reversed(range(5)):
        returns[step] += 0.9 * returns[step + 1]
    expected = torch.autograd.grad(-(torch.stack(gains) * returns).sum(), list(first.parameters()))
    episode = agent.episode(0)
    before = [weight.detach().clone() for weight in first.parameters()]
    learner.finish_episodes({0: episode}, 1.0)
    moved = [old - new.detach() for old, new in zip(before, first.parameters(), strict=True)]
    torch.testing.assert_close(moved, list(expected), rtol=0, atol=1e-10)
    assert not policy.eval().network.get_submodule("actor.1").training


@pytest.mark.usefixtures("without_loops")
def test_missing_loops_are_not_logged(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No update would use them."""
    with own_context(tmp_path, params, Role.TRAINER, monkeypatch) as context:
        training = Training(context)
    agent = training._agent
    assert agent is not None
    agent.begin(0)
    for reward in (1.0, 2.0):
        agent.select_action(0, torch.rand(1))
        agent.report_reward(0, reward)
    training._learner.finish_episodes({0: agent.episode(0)}, 1.0)
    assert not caplog.records


def test_continuous_actions_are_learned_from(params: Params) -> None:
    box = {"observation": {"shape": [1]}, "action": {"shape": [1], "low": [-2.0], "high": [2.0]}}
    policy = new_policy(params, box)
    agent = Agent(policy, CPU)
    agent.begin(0)
    assert agent.select_action(0, torch.ones(1)).shape == (1,)
    agent.report_reward(0, 1.0)
    agent.episode(0).log_probs.sum().backward()
    assert policy.network.get_parameter("actor.2.bias").grad.abs().sum() > 0  # type: ignore[union-attr]
