"""Verification of the master's certificate by clients."""

from rolecall.spec.model import Value

SYSTEM = "system"
"""Instead of a file: the CAs that the machine trusts."""


class Trust(Value):
    """The CA and the name with which a program verifies the master's certificate."""

    ca: str = SYSTEM
    """A file of CA certificates in PEM format, or `system`."""
    name: str | None = None
    """The name in the certificate, if it differs from the URL's host."""
