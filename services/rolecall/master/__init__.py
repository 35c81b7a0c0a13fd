"""The control program: HTTP API, job queue, placement, reconciliation, metrics. It never imports torch.

Pure functions (`placement`, `scheduler`, `lifecycle`) decide; thin loops act; all SQL is in `store/`. Nodes call the
master, which opens no connections to them.
"""
