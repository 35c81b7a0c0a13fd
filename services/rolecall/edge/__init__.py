"""Where programs meet the network: limits on connections, TLS, what logs may tell.

Shared by master, node, worker and command. No routes, no environment, no torch.
"""
