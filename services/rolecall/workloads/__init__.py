"""One folder per workload; each folder's `__init__` is torch-free and is all that the master sees of it.

A role's code is the function `run(context)` in the file named after the role.
"""
