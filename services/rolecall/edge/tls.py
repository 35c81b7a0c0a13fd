"""TLS contexts of servers and clients from PEM files, and explanations of TLS errors."""

import logging
import os
import ssl
from pathlib import Path
from typing import Any

import httpx

from rolecall.logs import about
from rolecall.spec.errors import SettingsError
from rolecall.spec.trust import SYSTEM, Trust

_LOG = logging.getLogger(__name__)
# OpenSSL's X509_V_ERR_… codes, for which Python has no names.
_EXPIRED, _NOT_YET_VALID = 10, 9
_WRONG_NAME = {62, 64}
_PLAIN_HTTP = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"}


class Certificate:
    """A server's certificate and key, reloaded for new connections when the files change."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self._stamps = self._read_stamps()
        self._current = _load(certificate, key)
        self.context = _load(certificate, key)
        """The context to listen with. Each handshake switches to the newest certificate."""
        self.context.sni_callback = self._select_context

    def _select_context(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        if (stamps := self._read_stamps()) != self._stamps:
            self._stamps = stamps
            try:
                self._current = _load(*self._files)
                text = "the certificate %s has changed; new connections get it"
                _LOG.info(text, self._files[0], extra=about("certificate_reloaded"))
            except SettingsError as error:
                text = "%s; the previous certificate stays in use"
                _LOG.warning(text, error, extra=about("certificate_unreadable"))
        connection.context = self._current

    def _read_stamps(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_stamp(path) for path in self._files)


def client_context(trust: Trust) -> ssl.SSLContext:
    """A client's context, which verifies a certificate's chain, dates and host name."""
    try:
        return ssl.create_default_context(cafile=None if trust.ca == SYSTEM else trust.ca)
    except ssl.SSLError:
        raise SettingsError(f"ROLECALL_TLS_CA={trust.ca} holds no certificate; give a PEM file of the CA") from None
    except OSError as error:
        raise SettingsError(f"ROLECALL_TLS_CA={trust.ca}: {error.strerror}; mount the CA's PEM file there") from None


def client_options(url: str, trust: Trust | None) -> dict[str, Any]:
    """The options of `httpx.Client` and `httpx.AsyncClient` for `trust`, by default the CAs of the system.

    To load these takes tens of milliseconds of CPU time, so a client of an `http://` URL trusts no CA.
    """
    trust = trust or Trust()
    plain = url.startswith("http://") and trust.ca == SYSTEM
    return {"verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else client_context(trust), "trust_env": False}


def request_options(trust: Trust | None) -> dict[str, Any]:
    """The options of each request: the name in the certificate, if it differs from the URL's host."""
    return {"extensions": {"sni_hostname": trust.name}} if trust and trust.name else {}


def certificate_end(answer: httpx.Response) -> float | None:
    """The expiry of the server's certificate, in seconds since 1970; None without TLS."""
    stream = answer.extensions.get("network_stream")
    connection = stream.get_extra_info("ssl_object") if stream is not None else None
    found = connection.getpeercert() if connection is not None else None
    return float(ssl.cert_time_to_seconds(found["notAfter"])) if found else None


def explain(error: BaseException, url: str, trust: Trust | None) -> str | None:
    """The TLS problem behind `error`, with a remedy, in one line; None if the error has another cause."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _explain_certificate(cause, trust)
    if cause is not None and cause.reason in _PLAIN_HTTP:
        return (
            "no TLS is spoken there; write http:// and unset ROLECALL_TLS_CA, or give the master ROLECALL_TLS_CERT "
            "and ROLECALL_TLS_KEY"
        )
    if cause is not None:
        return f"TLS failed: {cause.reason or cause}"
    if url.startswith("http://") and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        return (
            "the connection was closed without an answer; if the master has a certificate (ROLECALL_TLS_CERT), write "
            "https:// and set ROLECALL_TLS_CA to its CA's file"
        )
    return None


def _explain_certificate(error: ssl.SSLCertVerificationError, trust: Trust | None) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "its certificate has expired; renew the files of ROLECALL_TLS_CERT and ROLECALL_TLS_KEY on the master"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet; check the clocks of both machines"
    if code in _WRONG_NAME:
        return (
            f"{error.verify_message.rstrip('.')}; call it by a name of its certificate, or set ROLECALL_TLS_NAME to one"
        )
    ca = "the system's CAs" if trust is None or trust.ca == SYSTEM else f"the CA in ROLECALL_TLS_CA={trust.ca}"
    return f"its certificate is not signed by {ca} ({error.verify_message}); set ROLECALL_TLS_CA to its CA's file"


def _load(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    variables = f"ROLECALL_TLS_CERT={certificate} and ROLECALL_TLS_KEY={key}"
    try:
        # With an empty password, OpenSSL does not prompt for one on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        reason = error.reason or "no PEM files, or a key with a password"
        raise SettingsError(f"{variables}: {reason}; give PEM files of a certificate and of its key") from None
    except OSError as error:
        raise SettingsError(f"{variables}: {error.strerror}; mount both files where this user may read them") from None
    return context


def _stamp(path: Path) -> tuple[int, int] | None:
    """Modification time and inode, which change with the file and the target of a link; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
