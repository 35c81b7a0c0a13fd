"""Gymnasium environments for reinforcement-learning workloads.

`params`: the parameters. `creation`: creates environments, alone and in vectors, and describes their spaces.
`legacy_gym`: environments of the old Gym. `rollouts`: collects trajectories. `inference`: actions for observers that
request them from the agent. `returns`: discounted returns and advantages. `scores`: metrics of episodes. This file and
`params` import neither torch nor Gymnasium.
"""
