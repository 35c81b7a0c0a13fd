"""The routes of the HTTP API, one file per group.

Routes check the caller, and read and write through the store. They make no decisions.
"""
