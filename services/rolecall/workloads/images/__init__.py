"""Labelled images as workloads read them: a folder per class, or files in MNIST's IDX format.

`params` says what is read, `check` looks at it before a gang meets, `sources` finds and opens it, `loader` decodes,
augments and hands it out in batches. `params`, `check` and `sources` never import torch.
"""
