"""The API of a worker for workload code: context, rendezvous, remote calls, checkpoints, blobs, progress reports.

Nothing here depends on a particular workload, the master or the node's daemon.
"""
