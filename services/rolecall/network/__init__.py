"""Network diagnosis that nodes, workers and `preflight` share. It never imports torch and opens no rendezvous.

The terms, from observation to finding:

- A *route* is how this machine reaches the master (`routes`, `interfaces`).
- A *link* is the connection from one node to another, in one direction. A *probe* tests whether it is *reachable*
  (`links`).
- The *facts* of a node are what it knows about itself and others may know differently (`facts`).
- The *speed* of a *pair* of nodes is measured over RPC. A *survey* measures all pairs in a bounded time (`pairs`,
  `survey`).
- A *check* converts observations into *findings* (`findings`, pure; the values are in `spec/finding.py`).
- An *examination* is the findings of one `preflight` job (`spec/api.py`).
"""
