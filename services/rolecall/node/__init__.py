"""The daemon in every container.

It registers with the master, compares the workers it should be running with those it runs, ships logs and progress, and
serves `/metrics` and `/healthz`. It never imports torch and decides nothing about jobs: the master does.
"""
