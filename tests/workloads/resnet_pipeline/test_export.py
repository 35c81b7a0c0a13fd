# pyright: standard
"""The exported model needs neither Rolecall nor a cluster."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torchvision.models import resnet18
from torchvision.transforms import v2

from rolecall.workloads.resnet_pipeline.export import write_export
from rolecall.workloads.resnet_pipeline.model import build_resnet
from rolecall.workloads.resnet_pipeline.params import Params

CLASSES = ("cat", "dög")
PREDICT = """
from PIL import Image
from model import load
classifier = load(".")
print(classifier.classes, classifier.predict([Image.open("image.png")]).tolist())
"""


def exported(folder: Path, norm: str = "batch") -> torch.nn.Module:
    params = Params.model_validate({"data": {"train": "p", "size": 32}, "norm": norm})
    model = build_resnet("resnet18", len(CLASSES), norm).eval()
    path = write_export(folder, params, CLASSES, model.state_dict())
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder / "unpacked")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_it_predicts_in_a_fresh_process(tmp_path: Path, norm: str) -> None:
    model = exported(tmp_path, norm)
    image = Image.new("L", (64, 48), 200)
    image.save(tmp_path / "unpacked" / "image.png")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", PREDICT]
    answered = subprocess.check_output(command, cwd=tmp_path / "unpacked", env=environment, text=True)
    pixels = torch.full((1, 3, 32, 32), 200 / 255)
    normalized = v2.functional.normalize(pixels, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    (expected,) = model(normalized).softmax(-1).tolist()
    assert answered.startswith("['cat', 'dög'] [[")
    found = [float(one) for one in answered.split("[[")[1].rstrip("]\n").split(", ")]
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_its_weights_are_torchvisions(tmp_path: Path) -> None:
    exported(tmp_path)
    resnet18(num_classes=2).load_state_dict(load_file(tmp_path / "unpacked" / "model.safetensors"))
    assert "resnet18(num_classes=2).load_state_dict" in (tmp_path / "unpacked" / "README.md").read_text()
