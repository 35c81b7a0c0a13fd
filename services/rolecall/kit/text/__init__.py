"""Tokenized text for language-model workloads.

`params`: the parameters. `reading`: checks and reads files. `tokenizing`: trains tokenizers. `synthetic`: random tokens
instead of files. `corpus`: encodes or generates the splits once per node and memory-maps them. `batches`: tokens as
parallel streams or as shuffled sequences. This file, `params` and `reading` never import torch.
"""
