"""One folder per workload. Its `__init__` never imports torch, and is the only file that the master imports.

Each role has a file with its name, with the function `run(context)`.
"""
