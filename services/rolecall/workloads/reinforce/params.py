"""Parameters of `reinforce` jobs. Torch-free; docstrings are the API's descriptions."""

import json
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from rolecall import kit
from rolecall.kit import refuse
from rolecall.kit.builders import Builder
from rolecall.kit.environments.params import Environment, EnvironmentId
from rolecall.kit.params import (
    Adam,
    AdamW,
    Epochs,
    Fraction,
    LrSchedule,
    Positive,
    RenamedProtocol,
    Seconds,
    Sgd,
    Weight,
    Widths,
    to_object,
)

Discount = Annotated[float, Field(gt=0, le=1)]
Updates = Annotated[int, Field(ge=1, le=2**40)]
Observers = Annotated[int, Field(ge=1, le=1_000_000)]


class Mlp(kit.Params):
    """Two multilayer perceptrons (MLPs), one for the actions and one for the value."""

    name: Literal["mlp"]
    """Selects this policy."""
    hidden: Widths = (64, 64)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation function between the layers."""
    dropout: Fraction = 0.0
    """Dropout rate after each hidden layer of the MLP for the actions, while it selects actions and learns;
    evaluations and the exported policy don't drop units. Needs `protocol: tutorial`: other updates compute the
    probabilities of the actions again, with other units dropped."""
    initialization: Literal["orthogonal", "uniform"] = "orthogonal"
    """Initial weights. `orthogonal`: orthogonal matrices, of which the last one for the actions is near 0; `uniform`:
    the default of torch's `nn.Linear`, as in torch's RPC tutorial."""


class Custom(Builder):
    """A custom network: the function is called with the shape of one observation, the number of outputs (logits, or
    means of the actions) and the arguments. It returns a torch module from observations [n, *shape] to the outputs
    [n, outputs] and the values [n].
    """

    name: Literal["custom"]
    """Selects this policy."""


class Reinforce(kit.Params):
    """REINFORCE with a learned baseline (Williams, 1992): one step on the whole episodes of each update."""

    name: Literal["reinforce"]
    """Selects this algorithm."""
    gamma: Discount = 0.99
    """Discount factor of rewards."""
    value_coefficient: Weight = 0.5
    """Coefficient of the baseline's loss, the mean squared error of the values. `protocol: tutorial` has no
    baseline."""
    entropy_coefficient: Weight = 0.01
    """Coefficient of the entropy bonus, which encourages exploration. `protocol: tutorial` has no entropy bonus."""
    normalize_advantages: bool = True
    """Normalize the advantages (with `protocol: tutorial` the returns) of an update to mean 0 and standard deviation
    1."""
    returns: Literal["separate", "joined"] = "separate"
    """Returns of an update. `separate`: each ends with its episode; `joined`: as in the PyTorch tutorial, the episodes
    of the observers are one sequence, so that an episode's returns include the next observer's rewards. `joined`
    needs `protocol: tutorial`."""


class Ppo(kit.Params):
    """Proximal policy optimization (Schulman et al., 2017) with generalized advantage estimation."""

    name: Literal["ppo"]
    """Selects this algorithm."""
    steps: Annotated[int, Field(ge=4, le=2**24)] = 128
    """Number of steps of each environment per update."""
    epochs: Epochs = 10
    """Number of passes over the transitions of an update."""
    minibatch_size: Annotated[int, Field(ge=2, le=2**24)] = 256
    """Number of transitions per optimizer step."""
    gamma: Discount = 0.99
    """Discount factor of rewards."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Lambda of generalized advantage estimation: advantages rely on values at 0 and on rewards at 1."""
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Clip range of the probability ratio of an action in one update."""
    value_clip: Positive | None = None
    """Clip range of a value in one update; by default values are not clipped."""
    value_coefficient: Weight = 0.5
    """Coefficient of the value loss."""
    entropy_coefficient: Weight = 0.01
    """Coefficient of the entropy bonus, which encourages exploration."""
    normalize_advantages: bool = True
    """Normalize the advantages of each minibatch to mean 0 and standard deviation 1."""
    target_kl: Positive | None = None
    """KL divergence of the policy (in nats) at which an update's passes end; by default no limit."""


class Inference(kit.Params):
    """Batching of the agent's answers to observers that wait for actions, with one forward pass per batch."""

    batch: Observers | None = None
    """Number of waiting observers at which the agent answers; by default all active observers."""
    deadline_ms: Annotated[float, Field(ge=0, le=1e9)] = 2.0
    """Maximum milliseconds between the first request of a batch and the answer."""


class Evaluation(kit.Params):
    """Evaluation of the policy on separate episodes with fixed seeds."""

    episodes: Annotated[int, Field(ge=1, le=2**20)] = 100
    """Number of episodes."""
    every_updates: Updates = 10
    """Number of updates between two evaluations; the last update is always followed by one."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 10_000
    """Seed of the first episode; each following episode uses the next integer."""
    deterministic: bool = True
    """Take the most likely action (for continuous actions the mean) instead of sampling one."""
    movie: bool = True
    """Store the artifact `episode.gif`, the first episode of the last evaluation; needs an environment that
    can render (`rgb_array`)."""


class Params(kit.Params):
    """The parameters of a `reinforce` job."""

    environment: Annotated[
        Environment, BeforeValidator(to_object("id"), json_schema_input_type=EnvironmentId | Environment)
    ]
    """The task: a Gymnasium id or entry point, or an object with more settings."""
    algorithm: Annotated[
        Annotated[Reinforce | Ppo, Field(discriminator="name")],
        BeforeValidator(to_object("name"), json_schema_input_type=Literal["reinforce", "ppo"] | Reinforce | Ppo),
    ] = Ppo(name="ppo")
    """Training algorithm: `ppo` or `reinforce`, or an object with more settings."""
    policy: Annotated[
        Annotated[Mlp | Custom, Field(discriminator="name")],
        BeforeValidator(to_object("name"), json_schema_input_type=Literal["mlp"] | Mlp | Custom),
    ] = Mlp(name="mlp")
    """The network of the policy."""
    environments: Annotated[int, Field(ge=1, le=4096)] = 8
    """Number of environments in each observer; one call of the policy selects the actions for all of them."""
    policy_at: Literal["agent", "observer"] = "observer"
    """Place of action selection. `observer`: the agent sends the weights to the observers before each update, they
    return whole trajectories, and the same seed gives the same result; `agent`: the observers request actions from the
    agent at every step, and the agent sends its weights only for evaluations."""
    inference: Inference = Inference()
    """With `policy_at: agent`, how the agent batches requests."""
    protocol: Annotated[Literal["batched", "tutorial"], RenamedProtocol] = "batched"
    """Protocol between agent and observers. `tutorial` is that of the PyTorch tutorial, for comparison: every observer
    runs one environment, and calls the agent twice per step, for the action and to report the reward. The update is the
    tutorial's, too: REINFORCE without baseline and entropy bonus, with the gradients of the log-probabilities that the
    agent kept. It needs `algorithm: reinforce`, `policy_at: agent` and `environments: 1`."""
    environment_seeds: Literal["different", "same"] = "different"
    """Seeds of the observers' environments. `different`: each observer's episodes have seeds of their own; `same`: as
    in the PyTorch tutorial, the episodes that the observers run at the same time have the same seed. `same` needs
    `protocol: tutorial`."""
    wait_for: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the observers whose trajectories an update waits for; trajectories of slower observers are used in the
    next update. Below 1, slow observers don't delay the others, and results differ between runs."""
    least_observers: Observers = 1
    """Minimum number of observers. With fewer, the job writes a checkpoint and restarts with all of them."""
    env_steps: Annotated[int, Field(ge=1, le=2**50)] = 1_000_000
    """Total number of environment steps over all observers, after which the job ends."""
    max_updates: Updates | None = None
    """Maximum number of updates; the job ends after it even if steps remain."""
    target_return: Annotated[float, Field(ge=-1e12, le=1e12)] | Literal["threshold"] | None = None
    """Return at which the job ends: the mean return of an evaluation must reach it, or with `protocol: tutorial` the
    running return must exceed it, as in the tutorial. `threshold` is the reward threshold of the environment's
    registration. By default the job ends only after its last step."""
    log_every_updates: Updates | None = None
    """Number of updates between two lines about the returns in the agent's log; by default there is one every few
    seconds."""
    evaluation: Evaluation = Evaluation()
    """Evaluation of the policy."""
    normalize_observations: bool = False
    """Normalize observations to mean 0 and standard deviation 1 with running statistics, which the policy
    keeps."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted returns; reported returns are not
    changed."""
    optimizer: Annotated[Sgd | Adam | AdamW, Field(discriminator="name")] | None = None
    """Optimizer: `sgd`, `adam` or `adamw`; by default Adam with the learning rate 0.001 for PPO, which takes many steps
    in an update, and 0.003 for REINFORCE, which takes one."""
    lr_schedule: LrSchedule = LrSchedule()
    """Schedule of the learning rate over `env_steps`; its steps are environment steps."""
    max_grad_norm: Positive | None = 0.5
    """Maximum norm of the gradients; larger gradients are scaled down. With null, gradients are not clipped."""
    precision: Literal["float32", "float64"] = "float32"
    """Data type of all weights; `float64` is for parity tests."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of initial weights, environments, actions and minibatches."""
    checkpoint_every_updates: Updates | None = None
    """Number of updates between checkpoints. Environments start new episodes after each checkpoint."""
    checkpoint_every_s: Seconds | None = 60.0
    """Seconds between checkpoints. If `checkpoint_every_updates` is set too, whichever comes first applies."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        own = self._wrong_with_tutorial() if self.protocol == "tutorial" else self._only_with_tutorial()
        refuse([*own, *self._problems()])
        return self

    def _problems(self) -> Iterator[str]:
        if self.target_return == "threshold" and self.environment.is_entry_point:
            yield (
                f"target_return: threshold reads the registration of an environment's id, but {self.environment.id} is "
                "an entry point, which has none; set target_return to a number"
            )
        if self.inference != Inference() and self.policy_at == "observer":
            yield "inference configures how the agent selects actions; it requires policy_at: agent"

    @property
    def chosen_optimizer(self) -> Sgd | Adam | AdamW:
        """The given optimizer, or the algorithm's default."""
        return self.optimizer or Adam(name="adam", lr=0.001 if self.algorithm.name == "ppo" else 0.003, eps=1e-5)

    def _only_with_tutorial(self) -> Iterator[str]:
        if isinstance(self.policy, Mlp) and self.policy.dropout > 0:
            yield (
                "policy.dropout requires protocol: tutorial, because other updates compute the probabilities of the "
                "sampled actions again, with other units dropped; omit it"
            )
        if self.environment_seeds == "same":
            yield "environment_seeds: same requires protocol: tutorial; omit it"
        if isinstance(self.algorithm, Reinforce) and self.algorithm.returns == "joined":
            yield "algorithm.returns: joined requires protocol: tutorial; omit it"

    def _wrong_with_tutorial(self) -> Iterator[str]:
        required = {
            "algorithm": (self.algorithm.name, "reinforce"),
            "policy_at": (self.policy_at, "agent"),
            "environments": (self.environments, 1),
            "environment.vectorization": (self.environment.vectorization, "loop"),
            "wait_for": (self.wait_for, 1),
            "normalize_rewards": (self.normalize_rewards, False),
        }
        for name, (given, needed) in required.items():
            if given != needed:
                yield f"{name} must be {json.dumps(needed)} with protocol: tutorial; set it, or another protocol"
        if self.inference != Inference() and self.policy_at == "agent":
            yield "inference does not fit protocol: tutorial, which answers every request separately; omit inference"
        if not isinstance(self.algorithm, Reinforce):
            return
        default = Reinforce(name="reinforce")
        for name in ("value_coefficient", "entropy_coefficient"):
            if getattr(self.algorithm, name) not in (0, getattr(default, name)):
                yield f"algorithm.{name} does not fit protocol: tutorial, which has no baseline and no entropy; omit it"
