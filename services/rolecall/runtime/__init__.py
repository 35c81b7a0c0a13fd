"""What a worker gives to workload code.

What lives here: the context, the rendezvous, remote calls, checkpoints, blobs, progress reports, the data order. What
never may: anything that knows a particular workload, the master or a node's daemon.
"""
