"""Rolecall runs PyTorch training jobs whose processes play different roles.

The layers, from top to bottom. Imports point down only, which import-linter checks:

    __main__, cli            the entry points for containers and users
    supervisor | testing     restarts the programs of a container; runs a job without a cluster, for tests
    master | node | worker   the three programs, independent of each other
    client                   the Python client of the HTTP API, at the same level
    workloads                one folder per workload, with a torch-free `__init__`
    kit                      building blocks of workloads, the public API for their authors
    runtime                  the API of a worker for workload code
    network                  interfaces, routes and links between nodes
    edge | settings          the network interface of the programs; the only reader of the container's environment
    trackers                 the writing of jobs to MLflow and TensorBoard, at the same level
    spec | retry | daemon_thread | landlock | seccomp | untrusted_files | durable_files | orphans
                             shared data types, without I/O, clock and torch; delays of retries; threads; system calls;
                             files that outlast a power failure; the ends of child processes
    process                  settings of the kernel for a process
"""

__version__ = "0.2.0"
