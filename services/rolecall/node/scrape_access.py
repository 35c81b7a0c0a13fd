"""The tokens that a node's `/metrics` accepts. Pure: the caller provides the clock and the node's own tokens."""

import contextlib
import hmac
from collections.abc import Callable, Iterable
from datetime import datetime

from rolecall.spec.errors import SettingsError
from rolecall.spec.token import digest_of
from rolecall.spec.wire import ClusterInfo, ScrapeToken


class ScrapeAccess:
    """The tokens of the node's own settings, and those with only the scope `metrics`, whose digests the master sends.

    While the master is unavailable, the last ones remain valid until they expire. `read_own` is called with each
    update, because the node's own tokens in files can be rotated.
    """

    def __init__(self, read_own: Callable[[], Iterable[str]], now: Callable[[], datetime]) -> None:
        self._read_own = read_own
        self._now = now
        self._own = list[ScrapeToken]()
        self._accept()

    def update(self, info: ClusterInfo) -> None:
        """Accept the tokens that the master lists, and no others except the node's own."""
        self._accept(*info.scrape_tokens)

    def accepts(self, token: str) -> bool:
        """Return whether `token` gives access. As in `master.access`, the duration reveals nothing about valid ones."""
        digest = digest_of(token)
        known = self._known.get(digest)
        if known is None or not hmac.compare_digest(known.digest, digest):
            return False
        return known.expires_at is None or self._now() < known.expires_at

    def _accept(self, *listed: ScrapeToken) -> None:
        # A file that is being replaced may be gone for a moment.
        with contextlib.suppress(SettingsError):
            self._own = [ScrapeToken(digest=digest_of(token)) for token in self._read_own() if token]
        self._known = {token.digest: token for token in (*listed, *self._own)}
