"""A checkpoint of a model, its optimizer and the random state, as a workload writes it."""

import torch

from rolecall.kit.checkpoint import (
    flatten_named_optimizer,
    flatten_optimizer,
    random_state,
    restore_named_optimizer,
    restore_optimizer,
    restore_random_state,
    strip_prefix,
)

CPU = torch.device("cpu")


def trainee() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()


def test_a_restored_training_continues_bit_for_bit() -> None:
    model, optimizer = trainee()
    step(model, optimizer)
    weights = {f"weights/{name}": value.clone() for name, value in model.state_dict().items()}
    state = {name: value.clone() for name, value in (flatten_optimizer(optimizer) | random_state(CPU)).items()}
    step(model, optimizer)

    resumed, resumed_optimizer = trainee()
    tensors = weights | state
    resumed.load_state_dict(strip_prefix(tensors, "weights/"))
    restore_optimizer(resumed_optimizer, tensors)
    restore_random_state(tensors, CPU)
    step(resumed, resumed_optimizer)
    assert all(torch.equal(one, other) for one, other in zip(resumed.parameters(), model.parameters(), strict=True))


def test_named_optimizer_state_survives_another_order_of_the_parameters() -> None:
    one, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    other.load_state_dict(one.state_dict())
    optimizer = torch.optim.Adam(one.parameters(), lr=0.1)
    resumed = torch.optim.Adam([{"params": [other.bias]}, {"params": [other.weight]}], lr=0.1)
    step(one, optimizer)
    other.load_state_dict(one.state_dict())
    flat = flatten_named_optimizer(optimizer, dict(one.named_parameters()), "state/")
    state = {name: value.clone() for name, value in flat.items()}
    assert "state/weight/exp_avg" in state
    restore_named_optimizer(
        resumed, dict(other.named_parameters()), state | {"state/elsewhere/exp_avg": torch.ones(1)}, "state/"
    )
    step(one, optimizer)
    step(other, resumed)
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(one.bias, other.bias)
