"""The data types that all programs of Rolecall share.

This package contains frozen values and pure functions on them: no I/O, no clock, no randomness, no torch. A *spec* is
a request, a *plan* is a decision, and a *report* is an observation. Nothing else is stored or sent.
"""
