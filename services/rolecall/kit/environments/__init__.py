"""Gymnasium environments for reinforcement-learning workloads.

`params`: the parameters. `creation`: creates environments, alone and in vectors, and describes their spaces.
`rollouts`: collects trajectories. This file and `params` import neither torch nor Gymnasium.
"""
