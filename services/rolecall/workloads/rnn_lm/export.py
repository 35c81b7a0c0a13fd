"""What a job leaves: the trained model as plain PyTorch, and a sample of what it writes."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from rolecall.kit.export import write_archive
from rolecall.kit.precision import weight_dtype
from rolecall.kit.text.corpus import Corpus
from rolecall.workloads.rnn_lm import model
from rolecall.workloads.rnn_lm.params import Params

_README = """# An exported rnn-lm model

It needs Python 3.10 or later with `torch`, `safetensors` and `tokenizers`. In this folder:

```python
from model import load
model = load(".")
print(model.generate("\\n", tokens=100, temperature=0.8))  # text that begins anew
print(model.perplexity("Some text of your own."))
```
"""


_OWN_PART = "\nIts recurrent part is made by `{builder}`, whose module must be importable.\n"


def shape_of(params: Params) -> dict[str, Any]:
    """What a `LanguageModel` is made of."""
    return params.model_dump(mode="json", include={"embedding_dim", "hidden_dim", "layers", "dropout", "model"})


def write_model(folder: Path, params: Params, corpus: Corpus, weights: dict[str, torch.Tensor]) -> Path:
    """Writes `model.zip` into `folder` and gives its path; `weights` are `LanguageModel`'s."""
    description = {"workload": "rnn-lm", "shape": shape_of(params), "text": params.text.model_dump(mode="json")}
    files: dict[str, str | bytes | Path] = {
        "README.md": _README + (_OWN_PART.format(builder=params.model.builder) if params.model else ""),
        "model.py": Path(model.__file__),
        "model.json": json.dumps(description, indent=1, ensure_ascii=False),
        "tokenizer.json": corpus.tokenizer_json,
        "model.safetensors": save(weights),
    }
    return write_archive(folder, "model.zip", files)


def write_sample(folder: Path, params: Params, corpus: Corpus, weights: dict[str, torch.Tensor]) -> Path:
    """Writes `sample.txt`, a text of the model's own, into `folder` and gives its path."""
    trained = model.LanguageModel(shape_of(params), corpus.tokenizer)
    trained.to(weight_dtype(params.precision)).load_state_dict(weights)
    asked = params.sample
    text = trained.eval().generate(asked.prompt, tokens=asked.tokens, temperature=asked.temperature, seed=params.seed)
    path = folder / "sample.txt"
    path.write_text(text)
    return path
