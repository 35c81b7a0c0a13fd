"""The master's memory: one noun per module, and all SQL of the service.

A function takes the connection of a transaction that its caller opened, so that several changes commit together. Each
change of a state is guarded by the state and attempt that it leaves; when no row changed, somebody else was faster, and
that is an error.
"""
