"""Who may call what."""

import hashlib
import hmac


def attempt_token(node_token: str, job: str, attempt: int) -> str:
    """The token that a worker of one attempt bears: it opens that job's blobs and nothing else.

    Derived, so that the master can check it without a table and user code never sees the nodes' own token.
    """
    return hmac.new(node_token.encode(), f"{job}/{attempt}".encode(), hashlib.sha256).hexdigest()


def gang_secret(key: str, job: str, attempt: int) -> str:
    """What the workers of one attempt know and nobody else: by it they recognize each other on the network.

    `key` is the master's; the secret reaches the workers through their nodes.
    """
    return hmac.new(key.encode(), f"gang secret\0{job}/{attempt}".encode(), hashlib.sha256).hexdigest()
