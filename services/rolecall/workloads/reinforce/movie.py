"""Records an episode of the policy as an animated GIF."""

import os
from pathlib import Path
from typing import Any

import gymnasium
from PIL import Image

from rolecall.spec.errors import InputError
from rolecall.workloads.reinforce import environments
from rolecall.workloads.reinforce.model import Policy
from rolecall.workloads.reinforce.params import Params

_WIDTH = 300
_MAX_FRAMES = 250
_MIN_FRAME_MS = 20  # Viewers slow down shorter frames.


class RenderError(Exception):
    """The environment can't be rendered; the message has the reason."""


def record_episode(policy: Policy, params: Params, path: Path) -> None:
    """Run the first evaluation episode and write it to `path` as a GIF in real time.

    Raises `RenderError` if the environment can't be rendered.
    """
    # Render SDL environments without a display.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    try:
        environment = environments.make(params.environment, render=True)
    except InputError as error:
        raise RenderError(str(error)) from error
    try:
        frames = _run_episode(policy, environment, params)
    finally:
        environment.close()
    per_second = environment.metadata.get("render_fps", 30)
    kept = frames[:: -(-len(frames) // _MAX_FRAMES)]
    duration = len(frames) / len(kept) * 1000 / per_second
    kept[0].save(path, save_all=True, append_images=kept[1:], duration=max(_MIN_FRAME_MS, round(duration)), loop=0)


def _run_episode(policy: Policy, environment: environments.Env, params: Params) -> list[Image.Image]:
    observation, _ = environment.reset(seed=params.evaluation.seed)
    frames = [_frame(environment)]
    ended = False
    while not ended:
        action = policy.act(observation, deterministic=params.evaluation.deterministic)
        observation, _, terminated, truncated, _ = environment.step(action)
        frames.append(_frame(environment))
        ended = terminated or truncated
    return frames


def _frame(environment: environments.Env) -> Image.Image:
    """The current frame, resized and reduced to 64 colors."""
    try:
        picture: Any = environment.render()
    except (gymnasium.error.Error, ImportError, NotImplementedError) as error:
        raise RenderError(f"the environment can't be rendered: {error}") from error
    if getattr(picture, "ndim", None) != 3:
        raise RenderError("the environment does not render RGB arrays (rgb_array)")
    image = Image.fromarray(picture)
    height = max(1, round(image.height * _WIDTH / image.width))
    return image.resize((_WIDTH, height)).quantize(64)
