"""The worker, one process of one attempt: its main function, its sandbox, and the fork server that creates it."""
