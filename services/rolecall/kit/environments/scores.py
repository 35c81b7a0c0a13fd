"""Returns and lengths of episodes as metrics. Pure."""

from collections.abc import Mapping
from typing import Protocol

import torch

from rolecall.kit.environments.rollouts import EnvOutputs

_RUNNING_WEIGHT = 0.05


class EndedEpisodes(Protocol):
    """The k episodes of an observer that ended in an update."""

    @property
    def episode_returns(self) -> torch.Tensor:
        """[k], undiscounted."""
        ...

    @property
    def episode_lengths(self) -> torch.Tensor:
        """[k], in steps."""
        ...


def episode_metrics(episodes: Mapping[int, EndedEpisodes]) -> dict[str, float]:
    """Mean return and length of the episodes that ended in an update, over all observers; the mean return of each
    observer, and the lowest of these means. Empty if no episode ended.
    """
    ended = {rank: one.episode_returns for rank, one in episodes.items() if len(one.episode_returns)}
    if not ended:
        return {}
    lengths = torch.cat([episodes[rank].episode_lengths for rank in ended])
    means = {rank: float(returns.mean()) for rank, returns in ended.items()}
    return {
        "episode_return": float(torch.cat(list(ended.values())).mean()),
        "episode_length": float(lengths.double().mean()),
        "observer_return_min": min(means.values()),
        **{f"observer_{rank}_return": mean for rank, mean in means.items()},
    }


def running_return(before: float, metrics: Mapping[str, float]) -> float:
    """The running average of `observer_return_min`, which the tutorial calls running reward, after an update with these
    `episode_metrics`; unchanged if no episode ended.
    """
    lowest = metrics.get("observer_return_min")
    return before if lowest is None else _RUNNING_WEIGHT * lowest + (1 - _RUNNING_WEIGHT) * before


def evaluation_scores(env_outputs: list[EnvOutputs]) -> dict[str, float]:
    """Mean, standard deviation and range of the returns of an evaluation, and mean length."""
    returns = torch.cat([one.episode_returns for one in env_outputs])
    lengths = torch.cat([one.episode_lengths for one in env_outputs])
    return {
        "evaluation_return": float(returns.mean()),
        "evaluation_return_std": float(returns.std(correction=0)),
        "evaluation_return_min": float(returns.min()),
        "evaluation_return_max": float(returns.max()),
        "evaluation_length": float(lengths.double().mean()),
    }
