"""The network interface of the programs: connection limits, TLS, and logs without credentials.

Master, node, worker and CLI share it. It has no routes, reads no environment variables and never imports torch.
"""
