"""Rolecall runs PyTorch training jobs whose processes play different roles.

The map, from top to bottom; imports point down and only down (import-linter holds it):

    __main__, cli     what a person or a container starts
    master | node | worker   the three programs; they never import one another
    testing           a job's processes without a cluster, for tests of workloads
    workloads         one folder per workload; its `__init__` is torch-free
    kit               what workloads are made of: the public surface for their authors
    runtime           what a worker gives to workload code
    settings          the only reader of the container's environment
    spec              the nouns all programs share: no I/O, no clock, no torch
"""

__version__ = "0.1.0"
