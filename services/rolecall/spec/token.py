"""Secrets derived from the master's signing key."""

import hashlib
import hmac


def attempt_token(signing_key: str, job: str, attempt: int) -> str:
    """The token of the workers of one attempt: it opens that job's blobs and nothing else.

    Derived, so that the master can check it without a table. Only the master has the key: nodes get each attempt's
    token with the worker to start, so that the nodes' own tokens can be rotated at any time.
    """
    return hmac.new(signing_key.encode(), f"{job}/{attempt}".encode(), hashlib.sha256).hexdigest()


def gang_secret(signing_key: str, job: str, attempt: int) -> str:
    """What the workers of one attempt know and nobody else: by it they recognize each other on the network.

    `signing_key` is the master's; the secret reaches the workers through their nodes.
    """
    return hmac.new(signing_key.encode(), f"gang secret\0{job}/{attempt}".encode(), hashlib.sha256).hexdigest()
