"""Who may call what."""

import hashlib
import hmac


def attempt_token(node_token: str, job: str, attempt: int) -> str:
    """The token that a worker of one attempt bears: it opens that job's blobs and nothing else.

    Derived, so that the master can check it without a table and user code never sees the nodes' own token.
    """
    return hmac.new(node_token.encode(), f"{job}/{attempt}".encode(), hashlib.sha256).hexdigest()
