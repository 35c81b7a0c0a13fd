"""Exports the trained model as a self-contained zip."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType] - its own types

from rolecall.kit.export import write_archive
from rolecall.workloads.resnet_pipeline import model
from rolecall.workloads.resnet_pipeline.params import Params

_README = """# An exported resnet-pipeline model

It needs Python 3.10 or later with `torch`, `torchvision` and `safetensors`. In this folder:

```python
from PIL import Image
from model import load
classifier = load(".")
classifier.predict([Image.open("image.png")])  # the probability of each of classifier.classes
```

"""
_PLAIN = """
`model.safetensors` has torchvision's own names:

```python
from safetensors.torch import load_file
from torchvision.models import {model}
{imports}{model}(num_classes={classes}{norm}).load_state_dict(load_file("model.safetensors"))
```
"""
_OWN = """
`{builder}` builds the model; the module must be importable. `model.safetensors` has the model's names.
"""


def write_export(folder: Path, params: Params, classes: Sequence[str], weights: Mapping[str, torch.Tensor]) -> Path:
    """Write `model.zip` to `folder` and return its path; `weights` has the names of the whole model."""
    tensors = folder / "model.safetensors"
    save_file(dict(weights), tensors)
    about = {
        "workload": "resnet-pipeline",
        "model": params.model if isinstance(params.model, str) else params.model.model_dump(),
        "norm": params.norm,
        "classes": classes,
        "size": params.data.size,
        "mean": params.data.mean,
        "std": params.data.std,
    }
    files = {
        "model.py": Path(model.__file__),
        "model.json": json.dumps(about, indent=1, ensure_ascii=False),
        "model.safetensors": tensors,
        "README.md": _README + _about_weights(params, len(classes)),
    }
    path = write_archive(folder, "model.zip", files)
    tensors.unlink()
    return path


def _about_weights(params: Params, classes: int) -> str:
    if not isinstance(params.model, str):
        return _OWN.format(builder=params.model.builder)
    batch_norm = params.norm == "batch"
    return _PLAIN.format(
        model=params.model,
        classes=classes,
        imports="" if batch_norm else "from torch.nn import GroupNorm\n",
        norm="" if batch_norm else ", norm_layer=lambda channels: GroupNorm(32, channels)",
    )
