"""The database of the master, with all SQL of the service: one noun per module.

A function takes the connection of a transaction that its caller opened, so that several changes commit together. Each
change of a state is guarded by the previous state and attempt. If no row changed, another change came first, which is
an error.
"""
