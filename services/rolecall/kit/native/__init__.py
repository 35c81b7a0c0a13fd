"""Loops in C for what torch's operations are slow at on CPUs: one pass instead of many small operations.

The package contains the compiled library if there was a C compiler when it was built; see `hatch_build.py`. Callers
check `library.is_native` for their tensors, and otherwise use torch.
"""
