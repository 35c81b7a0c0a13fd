"""Labelled images as workloads read them: a folder per class, or files in MNIST's IDX format.

`params` says what is read, `sources` finds, checks and opens it, `loader` decodes, augments and hands it out in
batches. `params` and `sources` never import torch.
"""
