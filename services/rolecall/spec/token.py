"""Secrets derived from the master's signing key."""

import hashlib
import hmac
import re

_TOKEN = re.compile("([1-9][0-9]{0,9})[.][0-9a-f]{64}")


def attempt_token(signing_key: str, job: str, attempt: int) -> str:
    """The token of the workers of one attempt: it opens that job's blobs and nothing else.

    It consists of the attempt's number and a MAC. Derived, so that the master can check it without a table. Only the
    master has the key: nodes get each attempt's token with the worker to start, so that the nodes' own tokens can be
    rotated at any time.
    """
    mac = hmac.new(signing_key.encode(), f"{job}/{attempt}".encode(), hashlib.sha256)
    return f"{attempt}.{mac.hexdigest()}"


def attempt_of(signing_key: str, job: str, token: str) -> int | None:
    """The attempt of `job` whose token this is; None if it is none of that job's."""
    found = _TOKEN.fullmatch(token)
    if found is None:
        return None
    attempt = int(found[1])
    return attempt if hmac.compare_digest(token, attempt_token(signing_key, job, attempt)) else None


def gang_secret(signing_key: str, job: str, attempt: int) -> str:
    """What the workers of one attempt know and nobody else: by it they recognize each other on the network.

    `signing_key` is the master's; the secret reaches the workers through their nodes.
    """
    return hmac.new(signing_key.encode(), f"gang secret\0{job}/{attempt}".encode(), hashlib.sha256).hexdigest()
