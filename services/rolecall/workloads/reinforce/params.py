"""What a user may say about a `reinforce` job. Torch-free; docstrings are the API's descriptions."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from rolecall.kit.builders import Builder
from rolecall.kit.params import (
    Adam,
    AdamW,
    Count,
    Epochs,
    LrSchedule,
    Name,
    Positive,
    RenamedProtocol,
    Seconds,
    Sgd,
    Weight,
    Widths,
    tupled,
)
from rolecall.spec import workload

Discount = Annotated[float, Field(gt=0, le=1)]
Updates = Annotated[int, Field(ge=1, le=2**40)]
Observers = Annotated[int, Field(ge=1, le=1_000_000)]


def _identified(given: Any) -> Any:
    return {"id": given} if isinstance(given, str) else given


def _pointed(given: Any) -> Any:
    return {"entry_point": given} if isinstance(given, str) else given


def _named(given: Any) -> Any:
    return {"name": given} if isinstance(given, str) else given


class Wrapper(workload.Params):
    """A class that changes what an environment shows or takes."""

    entry_point: Annotated[str, Field(max_length=1024, pattern=r"^([A-Za-z_][\w.]*:)?[A-Za-z_]\w*$")]
    """The name of a class in `gymnasium.wrappers`, e.g. `FlattenObservation`, or `package.module:Class` where the
    operator allowed it."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Its keyword arguments."""


class Environment(workload.Params):
    """The task: a Gymnasium environment, made anew in every observer."""

    id: Annotated[str, Field(min_length=1, max_length=1024)]
    """An id in Gymnasium's registry (`CartPole-v1`), an id that a module registers (`package.module:Name-v0`), or an
    `Env` class or function (`package.module:Class`). Modules must be allowed by the operator, as builders must."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    max_episode_steps: Count | None = None
    """Episodes are cut after so many steps; by default the id's own limit, for an entry point none."""
    wrappers: Annotated[
        tuple[Annotated[Wrapper, BeforeValidator(_pointed, json_schema_input_type=Name | Wrapper)], ...],
        Field(max_length=100),
        BeforeValidator(tupled),
    ] = ()
    """Wrappers around each environment, the innermost first: names, or objects."""
    vectorization: Literal["loop", "own"] = "loop"
    """`loop`: an observer's environments are stepped one after the other; `own`: by the environment's own vector
    implementation (the `vector_entry_point` of its id), many times faster where there is one."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.vectorization == "own" and self.wrappers:
            raise ValueError("wrappers go around single environments and need vectorization: loop")
        return self


class Mlp(workload.Params):
    """Two multilayer perceptrons, one for the actions and one for the value."""

    name: Literal["mlp"]
    """Chooses this policy."""
    hidden: Widths = (64, 64)
    """The widths of the hidden layers."""
    activation: Literal["tanh", "relu"] = "tanh"
    """The function between the layers."""


class Custom(Builder):
    """A network of the user's own: the function is called with the shape of one observation, the number of outputs
    (logits, or means of the actions) and the arguments. It gives a torch module that takes observations [n, *shape] and
    gives the outputs [n, outputs] and the values [n].
    """

    name: Literal["custom"]
    """Chooses this policy."""


class Reinforce(workload.Params):
    """REINFORCE with a learnt baseline (Williams, 1992): one step on the whole episodes of each update."""

    name: Literal["reinforce"]
    """Chooses this algorithm."""
    gamma: Discount = 0.99
    """The discount of a reward that comes one step later."""
    value_coefficient: Weight = 0.5
    """The weight of the baseline's loss, the mean squared error of the values."""
    entropy_coefficient: Weight = 0.01
    """The weight of the entropy, which keeps the policy exploring."""
    normalize_advantages: bool = True
    """Bring the advantages of an update to mean 0 and deviation 1."""


class Ppo(workload.Params):
    """Proximal policy optimization (Schulman et al., 2017) with generalized advantage estimation."""

    name: Literal["ppo"]
    """Chooses this algorithm."""
    steps: Annotated[int, Field(ge=4, le=2**24)] = 128
    """Steps of each environment per update."""
    epochs: Epochs = 10
    """Passes over the transitions of an update."""
    minibatch_size: Annotated[int, Field(ge=2, le=2**24)] = 256
    """Transitions per optimizer step."""
    gamma: Discount = 0.99
    """The discount of a reward that comes one step later."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """How far advantages trust rewards (1) more than values (0)."""
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """How far the probability of an action may move in one update before its gradient is cut off."""
    value_clip: Positive | None = None
    """How far a value may move in one update; by default as far as it wants."""
    value_coefficient: Weight = 0.5
    """The weight of the value loss."""
    entropy_coefficient: Weight = 0.01
    """The weight of the entropy, which keeps the policy exploring."""
    normalize_advantages: bool = True
    """Bring the advantages of each minibatch to mean 0 and deviation 1."""
    target_kl: Positive | None = None
    """End an update's passes when the policy has moved so far (in nats)."""


class Inference(workload.Params):
    """When the agent answers observers that wait for actions, with one forward pass for all of them."""

    batch: Observers | None = None
    """Answer as soon as so many observers wait; by default, all that are at work."""
    deadline_ms: Annotated[float, Field(ge=0, le=1e9)] = 2.0
    """Answer at the latest so long after the first of them asked."""


class Evaluation(workload.Params):
    """Episodes of their own, with fixed seeds, that say how good the policy is."""

    episodes: Annotated[int, Field(ge=1, le=2**20)] = 100
    """How many."""
    every_updates: Updates = 10
    """Updates between two evaluations; the last update is always followed by one."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 10_000
    """The seed of the first episode; each next episode has the next one."""
    deterministic: bool = True
    """Take the likeliest action (the mean, of continuous actions) instead of drawing one."""
    movie: bool = True
    """Leave the artifact `episode.gif`, the first episode of the last evaluation; needs an environment that can render
    (`rgb_array`)."""


class Params(workload.Params):
    """The parameters of a `reinforce` job."""

    environment: Annotated[Environment, BeforeValidator(_identified, json_schema_input_type=Name | Environment)]
    """The task: a Gymnasium id or entry point, or an object that says more."""
    algorithm: Annotated[
        Annotated[Reinforce | Ppo, Field(discriminator="name")],
        BeforeValidator(_named, json_schema_input_type=Name | Reinforce | Ppo),
    ] = Ppo(name="ppo")
    """How the policy learns: `ppo` or `reinforce`, or an object that says more."""
    policy: Annotated[
        Annotated[Mlp | Custom, Field(discriminator="name")],
        BeforeValidator(_named, json_schema_input_type=Name | Mlp | Custom),
    ] = Mlp(name="mlp")
    """The network."""
    environments: Annotated[int, Field(ge=1, le=4096)] = 8
    """Environments in each observer; one call of the policy decides for all of them."""
    policy_at: Literal["agent", "observer"] = "observer"
    """Where actions are decided. `observer`: the weights go to the observers before each update, whole trajectories
    come back, and the same seed gives the same result; `agent`: the observers ask the agent at every step, and the
    weights leave it for evaluations alone."""
    inference: Inference = Inference()
    """With `policy_at: agent`, how the agent gathers questions."""
    protocol: Annotated[Literal["batched", "tutorial"], RenamedProtocol] = "batched"
    """`tutorial` keeps the tutorial's protocol as a reference: one environment per observer, one call per step, each
    answered by itself. It needs `algorithm: reinforce`, `policy_at: agent` and `environments: 1`."""
    wait_for: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the observers whose trajectories an update waits for; those of slower ones go into the next update.
    Below 1 no observer holds the others, and results differ from run to run."""
    least_observers: Observers = 1
    """The job goes on as long as so many observers are left. With fewer it writes a checkpoint and is started anew with
    all of them."""
    env_steps: Annotated[int, Field(ge=1, le=2**50)] = 1_000_000
    """End after so many steps of environments, all observers together."""
    max_updates: Updates | None = None
    """End after so many updates even if steps are left."""
    target_return: Annotated[float, Field(ge=-1e12, le=1e12)] | None = None
    """End as soon as the mean return of an evaluation is no less; without it, never before the last step."""
    evaluation: Evaluation = Evaluation()
    """How the policy is judged."""
    normalize_observations: bool = False
    """Bring observations to mean 0 and deviation 1, as far as they have been seen; the policy keeps the statistics."""
    normalize_rewards: bool = False
    """Divide rewards by the deviation of the discounted returns seen so far; reported returns are not changed."""
    optimizer: Annotated[Sgd | Adam | AdamW, Field(discriminator="name")] | None = None
    """The optimizer: `sgd`, `adam` or `adamw`; by default Adam with the learning rate 0.001 for PPO, which steps many
    times in an update, and 0.003 for REINFORCE, which steps once."""
    lr_schedule: LrSchedule = LrSchedule()
    """How the learning rate moves over `env_steps`, in which its steps are counted."""
    max_grad_norm: Positive | None = 0.5
    """Gradients longer than this are shortened to it."""
    precision: Literal["float32", "float64"] = "float32"
    """The type of all weights; `float64` is for proofs of parity."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Decides first weights, environments, actions and minibatches."""
    checkpoint_every_updates: Updates | None = None
    """Updates between checkpoints. Environments begin new episodes after each checkpoint."""
    checkpoint_every_s: Seconds | None = 60.0
    """Seconds between checkpoints; with both, whichever comes first."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.protocol == "tutorial":
            self._check_tutorial_protocol()
        if self.inference != Inference() and self.policy_at == "observer":
            raise ValueError("inference says how the agent decides actions; it needs policy_at: agent")
        return self

    @property
    def chosen_optimizer(self) -> Sgd | Adam | AdamW:
        """The optimizer that is given, or the algorithm's default."""
        return self.optimizer or Adam(name="adam", lr=0.001 if self.algorithm.name == "ppo" else 0.003, eps=1e-5)

    def _check_tutorial_protocol(self) -> None:
        legal = {"algorithm": "reinforce", "policy_at": "agent", "environments": 1}
        given = {"algorithm": self.algorithm.name, "policy_at": self.policy_at, "environments": self.environments}
        wrong = [f"{name}: {value}" for name, value in legal.items() if given[name] != value]
        if wrong:
            raise ValueError(f"protocol: tutorial needs {', '.join(wrong)}")
        if self.inference != Inference():
            raise ValueError("protocol: tutorial answers every question by itself; leave inference out")
