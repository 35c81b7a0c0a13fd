"""Text files as streams of tokens, for every workload that models language.

`params` says which files and what a token is, `reading` checks them and hands out their lines, `tokenizing` makes and
trains tokenizers, `corpus` encodes the splits once per node and maps them into memory. This file, `params` and
`reading` never import torch.
"""
