"""Exports the trained policy as a self-contained zip: plain PyTorch code, safetensors and JSON."""

import json
from pathlib import Path

from safetensors.torch import save

from rolecall.kit.export import write_archive
from rolecall.workloads.reinforce import model
from rolecall.workloads.reinforce.model import Policy
from rolecall.workloads.reinforce.params import Params

_README = """# An exported reinforce policy

It needs Python 3.10 or later with `torch`, `numpy` and `safetensors`{more}. In this folder:

```python
from model import load
policy = load(".")
action = policy.act(observation)  # for one observation of the environment `{environment}`
```

`model.json` describes the policy's spaces and layers, and the environment and wrappers of the training.
"""


def write_export(folder: Path, policy: Policy, params: Params) -> Path:
    """Write `model.zip` to `folder` and return its path; the policy must be on the CPU."""
    environment = params.environment.model_dump(mode="json")
    builder = f", and the package of the builder `{params.policy.builder}`" if params.policy.name == "custom" else ""
    description = {"workload": "reinforce", "environment": environment, **policy.description}
    return write_archive(
        folder,
        "model.zip",
        {
            "model.py": Path(model.__file__),
            "model.json": json.dumps(description, indent=1),
            "model.safetensors": save({name: value.contiguous() for name, value in policy.state_dict().items()}),
            "README.md": _README.format(environment=params.environment.id, more=builder),
        },
    )
