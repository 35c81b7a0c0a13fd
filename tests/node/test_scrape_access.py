"""The tokens that a node's `/metrics` accepts."""

from datetime import UTC, datetime, timedelta

from rolecall.node.scrape_access import ScrapeAccess
from rolecall.spec.errors import SettingsError
from rolecall.spec.token import digest_of
from rolecall.spec.wire import ClusterInfo, ScrapeToken

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def info(*tokens: ScrapeToken) -> ClusterInfo:
    return ClusterInfo(time_s=0.0, version="1", remote_nodes=0, scrape_tokens=tokens)


def test_the_masters_tokens_are_accepted_until_they_expire_or_are_revoked() -> None:
    now = [NOW]
    access = ScrapeAccess(lambda: ("node", "metrics"), now=lambda: now[0])
    named = ScrapeToken(digest=digest_of("named"))
    old = ScrapeToken(digest=digest_of("rotated"), expires_at=NOW + timedelta(seconds=60))

    def accepted() -> list[str]:
        return [token for token in ("node", "metrics", "named", "rotated", "", "other") if access.accepts(token)]

    assert accepted() == ["node", "metrics"]
    access.update(info(named, old))
    assert accepted() == ["node", "metrics", "named", "rotated"]
    now[0] += timedelta(seconds=60)
    assert accepted() == ["node", "metrics", "named"]
    access.update(info())
    assert accepted() == ["node", "metrics"]


def test_a_digest_is_no_token() -> None:
    access = ScrapeAccess(tuple, now=lambda: NOW)
    access.update(info(ScrapeToken(digest=digest_of("named"))))
    assert not access.accepts(digest_of("named"))


def test_the_nodes_own_tokens_can_be_rotated() -> None:
    own = [["before", ""]]

    def read() -> list[str]:
        if not own:
            raise SettingsError("the file is being replaced")
        return own.pop()

    access = ScrapeAccess(read, now=lambda: NOW)
    access.update(info())
    assert access.accepts("before")
    own.append(["after", ""])
    access.update(info())
    assert [token for token in ("before", "after", "") if access.accepts(token)] == ["after"]
