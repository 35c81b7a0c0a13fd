"""Webhooks: where they may go, what they say, and their signature. Pure.

A user chooses the URL, and the master's network reaches more than the user's. So the operator allows hosts, and the
address to which a host resolves must be public or in a network that the operator allows.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from rolecall.master.store.records import JobRecord, NotificationRecord
from rolecall.spec.redaction import redact_text
from rolecall.spec.visible import one_line
from rolecall.spec.webhook import MAX_URL, Notification, NotifiedJob

_TEXT = re.compile(r"[^\s\\<>\"^`{|}]*")
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")
_PORTS = {"https": 443, "http": 80}
_TRANSLATED = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC = tuple(map(ip_network, ("192.0.0.0/24", "168.63.129.16/32", "fec0::/10")))
"""Networks that `is_global` includes: metadata services of clouds, and addresses of a site."""
_DELAYS_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, 7200.0)
MAX_TRIES = len(_DELAYS_S) + 1
_REASON_CHARS = 1000


def url_problem(url: str, hosts: Collection[str]) -> str | None:
    """The reason why the master does not send to `url`, or None. `hosts` are the allowed ones."""
    if not hosts:
        return "this master sends no webhooks: its operator has allowed no hosts (ROLECALL_WEBHOOK_HOSTS)"
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or not _TEXT.fullmatch(url):
        return f"it is not a URL of up to {MAX_URL} printable ASCII characters"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "it is not a URL"
    if parts.username is not None or parts.fragment:
        return "it has user information or a fragment, which is not supported"
    # Other parsers may see another host in a URL with other characters.
    if parts.scheme not in _PORTS or not parts.hostname or not _HOST.fullmatch(parts.hostname):
        return "it is not an http or https URL with a host name or an IPv4 address"
    own = f"{parts.hostname}:{port}" if port is not None and port != _PORTS[parts.scheme] else parts.hostname
    return None if any(_matches(own, host) for host in hosts) else f"the host {own} is not allowed"


def _matches(host: str, pattern: str) -> bool:
    """Return whether a host is the allowed one, or below it for a pattern like `*.example.com`."""
    pattern = pattern.lower()
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def address_problem(address: str, networks: Iterable[str]) -> str | None:
    """The reason why the master does not connect to `address`, or None. `networks` are allowed private ones."""
    found = _embedded(ip_address(address.partition("%")[0]))
    if any(found in ip_network(network) for network in networks):
        return None
    public = found.is_global and not found.is_multicast and not found.is_reserved
    public = public and not any(found in network for network in _NOT_PUBLIC)
    return None if public else f"its address {found} is not public"


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, IPv6Address):
        if address in _TRANSLATED:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def secret_of(signing_key: str, owner: str) -> str:
    """The secret with which the webhooks of an owner's jobs are signed, in the form of Standard Webhooks."""
    key = hmac.new(signing_key.encode(), f"webhook\0{owner}".encode(), hashlib.sha256).digest()
    return f"whsec_{base64.b64encode(key).decode()}"


def signed_headers(secret: str, id: str, now: datetime, body: bytes) -> dict[str, str]:
    """The headers of a webhook (https://www.standardwebhooks.com)."""
    timestamp = str(int(now.timestamp()))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = hmac.new(key, f"{id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return {
        "Content-Type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }


def next_try(tries: int, now: datetime) -> datetime | None:
    """The time of the next try after `tries` failed ones, or None if there is none."""
    return now + timedelta(seconds=_DELAYS_S[tries - 1]) if tries < MAX_TRIES else None


def payload(job: JobRecord, labels: dict[str, str], notification: NotificationRecord) -> bytes:
    reason = job.reason and one_line(redact_text(job.reason).partition("\n")[0])[:_REASON_CHARS]
    shown = NotifiedJob(
        id=job.id,
        name=job.name,
        workload=job.workload,
        owner=job.owner,
        labels=labels,
        state=notification.state,
        reason=reason,
        attempt=job.attempt,
        created_at=job.created_at,
        ended_at=notification.at,
    )
    message = Notification(type=f"job.{notification.state}", timestamp=notification.at, data=shown)
    return message.model_dump_json().encode()
