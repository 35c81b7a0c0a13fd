"""The nouns that every program of Rolecall shares.

What lives here: frozen values and pure functions over them. What never may: I/O, a clock, randomness, torch. A
*spec* says what was asked, a *plan* what was decided, a *report* what was observed; nothing else is stored or sent.
"""
