"""The only reader of the container's environment.

Each program imports from the module of its settings: `master`, `node` or `worker`. `program` has what master and node
share, `environment` what all share, `secrets` the variables with secrets and their files. `private_paths` lists the
files that jobs may never read. `child_environments` removes the secrets that the programs must not inherit.
"""
