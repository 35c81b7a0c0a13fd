"""The digests of tokens, and secrets derived from the master's signing key."""

import hashlib
import hmac
import re

_TOKEN = re.compile("([1-9][0-9]{0,9})[.][0-9a-f]{64}")


def digest_of(secret: str) -> str:
    """The digest of a token's secret, which is stored and compared instead of the secret.

    Secrets are 256 random bits, so plain SHA-256 is enough. A slow or salted hash protects secrets that can be guessed,
    such as passwords; here it would only make each call slower.
    """
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


def attempt_token(signing_key: str, job: str, attempt: int) -> str:
    """The token of the workers of one attempt, which gives access only to that job's blobs.

    It consists of the attempt's number and a MAC, so that the master can check it without its database. Only the
    master has the key. Nodes get the token in each worker's launch, so it does not depend on the nodes' own tokens,
    which can be rotated at any time.
    """
    return f"{attempt}.{mac(signing_key, f'{job}/{attempt}')}"


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
    return mac(signing_key, "gang secret", f"{job}/{attempt}")


def mac(secret: str, *words: str) -> str:
    """The authentication code of words without null characters, for those who know the secret."""
    return hmac.new(secret.encode(), "\0".join(words).encode(), hashlib.sha256).hexdigest()
