"""Network diagnosis that nodes and workers share; it never imports torch.

A *route* is how this machine reaches the master. A *link* is the connection from one node to another, in one direction:
a *probe* tests whether it is *reachable*. A *check* converts observations into findings (`spec/finding.py`).
"""
