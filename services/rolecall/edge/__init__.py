"""The network interface of the programs: connection limits and TLS.

Master, node, worker and CLI share it. It has no routes, reads no environment variables and never imports torch.
"""
