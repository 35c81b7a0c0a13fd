"""Gymnasium environments for reinforcement-learning workloads.

`params`: the parameters. `creation`: creates environments, alone and in vectors, and describes their spaces.
`legacy_gym`: environments of the old Gym. `rollouts`: collects trajectories. This file and `params` import neither
torch nor Gymnasium.
"""
