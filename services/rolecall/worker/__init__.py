"""One process of one attempt: the fork server that makes it, and its main: plan in, join, run the role, report out."""
