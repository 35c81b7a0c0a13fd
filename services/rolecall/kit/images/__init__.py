"""Labeled images: a folder per class, or files in MNIST's IDX format.

`params`: the parameters. `sources`: finds, checks and opens images. `loader`: decodes, augments and batches them.
`params` and `sources` never import torch.
"""
