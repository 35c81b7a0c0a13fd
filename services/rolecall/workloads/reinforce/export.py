"""Exports the trained policy: a self-contained zip, and an episode as an animated GIF."""

import json
import math
import os
from pathlib import Path
from typing import Any

import gymnasium
from PIL import Image
from safetensors.torch import save

from rolecall.kit import InputError
from rolecall.kit.checkpoint import separate_memory
from rolecall.kit.environments import creation
from rolecall.kit.export import write_archive
from rolecall.workloads.reinforce import model
from rolecall.workloads.reinforce.model import Policy
from rolecall.workloads.reinforce.params import Params

_WIDTH = 300
_MAX_FRAMES = 250
_MIN_FRAME_MS = 20  # Viewers slow down shorter frames.
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
            "model.safetensors": save(separate_memory(policy.state_dict())),
            "README.md": _README.format(environment=params.environment.id, more=builder),
        },
    )


class RenderError(Exception):
    """The environment can't be rendered; the message has the reason."""


def record_episode(policy: Policy, params: Params, path: Path, expected_steps: float = 0.0) -> None:
    """Run the first evaluation episode and write it to `path` as a GIF in real time. `expected_steps` is the expected
    length of the episode, so that only the frames of the movie are rendered.

    Raises `RenderError` if the environment can't be rendered.
    """
    # Render SDL environments without a display.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    try:
        environment = creation.make(params.environment, render=True)
    except InputError as error:
        raise RenderError(str(error)) from error
    try:
        frames, steps = _run_episode(policy, environment, params, math.ceil((expected_steps + 1) / _MAX_FRAMES))
    finally:
        environment.close()
    per_second = environment.metadata.get("render_fps", 30)
    duration = (steps + 1) / len(frames) * 1000 / per_second
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=max(_MIN_FRAME_MS, round(duration)), loop=0)


def _run_episode(
    policy: Policy, environment: creation.Env, params: Params, every: int
) -> tuple[list[Image.Image], int]:
    """At most `_MAX_FRAMES` frames of an episode, one in `every` steps or fewer, and its number of steps."""
    observation, _ = environment.reset(seed=params.evaluation.seed)
    # Rendering takes longer than acting, and the length is only expected: when there are too many frames, drop every
    # second, and render half as often.
    frames, steps, ended = [_frame(environment)], 0, False
    while not ended:
        action = policy.act(observation, deterministic=params.evaluation.deterministic)
        observation, _, terminated, truncated, _ = environment.step(action)
        steps, ended = steps + 1, terminated or truncated
        if steps % every == 0:
            frames.append(_frame(environment))
        if len(frames) > _MAX_FRAMES:
            frames, every = frames[::2], 2 * every
    return frames, steps


def _frame(environment: creation.Env) -> Image.Image:
    """The current frame, resized and reduced to 64 colors, because a raw one can take megabytes."""
    try:
        picture: Any = environment.render()
    except (gymnasium.error.Error, ImportError, NotImplementedError) as error:
        raise RenderError(f"the environment can't be rendered: {error}") from error
    if getattr(picture, "ndim", None) != 3:
        raise RenderError("the environment does not render RGB arrays (rgb_array)")
    image = Image.fromarray(picture)
    height = max(1, round(image.height * _WIDTH / image.width))
    # With `reducing_gap`, large frames first shrink by a whole factor, which takes less than half of the time.
    small = image.resize((_WIDTH, height), Image.Resampling.BOX, reducing_gap=1.0)
    return small.quantize(64, Image.Quantize.FASTOCTREE)
