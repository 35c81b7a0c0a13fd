"""Secrets derived from the master's signing key."""

import hashlib
import hmac
import re

_TOKEN = re.compile("([1-9][0-9]{0,9})[.][0-9a-f]{64}")


def attempt_token(signing_key: str, job: str, attempt: int) -> str:
    """The token of the workers of one attempt, which gives access only to that job's blobs.

    It consists of the attempt's number and a MAC, so that the master can check it without its database. Only the
    master has the key. Nodes get the token in each worker's launch, so it does not depend on the nodes' own tokens,
    which can be rotated at any time.
    """
    mac = hmac.new(signing_key.encode(), f"{job}/{attempt}".encode(), hashlib.sha256)
    return f"{attempt}.{mac.hexdigest()}"


def attempt_of(signing_key: str, job: str, token: str) -> int | None:
    """The attempt of `job` to which the token belongs, or None if it is not a token of that job."""
    found = _TOKEN.fullmatch(token)
    if found is None:
        return None
    attempt = int(found[1])
    return attempt if hmac.compare_digest(token, attempt_token(signing_key, job, attempt)) else None


def gang_secret(signing_key: str, job: str, attempt: int) -> str:
    """The secret with which the workers of one attempt authenticate each other on the network.

    `signing_key` is the master's key. The workers get the secret from their nodes.
    """
    return hmac.new(signing_key.encode(), f"gang secret\0{job}/{attempt}".encode(), hashlib.sha256).hexdigest()
