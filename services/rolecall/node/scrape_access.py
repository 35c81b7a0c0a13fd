"""The tokens that a node's `/metrics` accepts. Pure: the caller provides the clock."""

import hmac
from collections.abc import Callable
from datetime import datetime

from pydantic import SecretStr

from rolecall.spec.token import digest_of
from rolecall.spec.wire import ClusterInfo, ScrapeToken


class ScrapeAccess:
    """The tokens of the node's own settings, and those with only the scope `metrics`, whose digests the master sends.

    While the master is unavailable, the last ones remain valid until they expire.
    """

    def __init__(self, *own: SecretStr | None, now: Callable[[], datetime]) -> None:
        self._own = [ScrapeToken(digest=digest_of(token.get_secret_value())) for token in own if token is not None]
        self._known = {token.digest: token for token in self._own}
        self._now = now

    def update(self, info: ClusterInfo) -> None:
        """Accept the tokens that the master lists, and no others except the node's own."""
        self._known = {token.digest: token for token in (*info.scrape_tokens, *self._own)}

    def accepts(self, token: str) -> bool:
        """Return whether `token` gives access. As in `master.access`, the duration reveals nothing about valid ones."""
        digest = digest_of(token)
        known = self._known.get(digest)
        if known is None or not hmac.compare_digest(known.digest, digest):
            return False
        return known.expires_at is None or self._now() < known.expires_at
