"""Whom a client trusts to be the master."""

from rolecall.spec.model import Value

SYSTEM = "system"
"""In place of a file: the CAs that the machine trusts."""


class Trust(Value):
    """What a program checks the master's certificate against."""

    ca: str = SYSTEM
    """A file of CA certificates in PEM format, or `system`."""
    name: str | None = None
    """The name that the certificate must bear, where that is not the URL's host."""
