"""The HTTP edge: one file per group of routes.

Routes check who calls, read and write through the store, and decide nothing.
"""
