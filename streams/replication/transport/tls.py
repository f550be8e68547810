"""TLS of the replication port and of followers: contexts, reload of changed certificates, and error texts.

A server requires a certificate of every client. One of the authorities in the file of client authorities must have
signed it. The oldest allowed version is TLS 1.2. TLS sessions are never resumed, so that every connection is checked
against the authorities that are loaded when it begins.
"""

from __future__ import annotations

import argparse
import enum
import ssl
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from streams.conf import StreamSettings
from streams.replication.errors import BadCertificate
from streams.runtime.logs import get_logger

log = get_logger(__name__)

#: Schemes of servers' addresses that mean TLS.
TLS_SCHEMES = ("tls", "tcps")
#: The least time between two checks for changed files. A check happens when a client connects.
CHECK_SECONDS = 5.0
_EXPIRED, _NOT_YET_VALID = 10, 9  # X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID
#: The bytes in front of a record, of which the last two are its length, and the longest record behind them.
RECORD_HEAD_BYTES, _LONGEST_RECORD_BYTES = 5, 16 * 1024 + 2_048
#: The most records of a client's handshake. A usual one has five, and one for each 16 kB of certificates.
MOST_OF_HANDSHAKE = 100
#: The most records without data after the handshake: requests for new keys, which a program sends once for many gigabytes,
#: and alerts. For each such number of bytes of data there may be one more.
MOST_WITHOUT_DATA, DATA_FOR_ONE_WITHOUT = 32, 1024 * 1024
#: The most records of a client that are handled before other work of the event loop has its turn. A record of a single byte
#: costs as much as a long one.
MOST_IN_TURN = 256


class Refusal(enum.StrEnum):
    """The reason why a connection was refused before the protocol began. Refusals are counted by their reasons."""

    CONNECTION_LIMIT = "connection limit"
    ADDRESS_LIMIT = "address limit"
    NETWORK = "network not allowed"
    NOT_TLS = "plain text to a TLS port"
    NO_CERTIFICATE = "no client certificate"
    EXPIRED = "client certificate expired"
    UNTRUSTED = "client certificate not trusted"
    OLD_TLS = "TLS version too old"
    OWN_CERTIFICATE = "our certificate refused by the client"
    HANDSHAKE = "TLS handshake failed"
    TIMEOUT = "TLS handshake timeout"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of PEM files: certificate, key and authorities. An empty path means that there is no such file."""

    certificate: str = ""
    key: str = ""
    authorities: str = ""

    @classmethod
    def of_server(cls, given: StreamSettings, options: dict[str, str | None] | None = None) -> TlsFiles | None:
        """Returns the files of the replication port, or None if the port does not use TLS. Options take precedence over settings.

        The port uses TLS if client authorities are given as an option or setting, or if a certificate or key is given
        as an option. A certificate or key in the settings alone does not turn TLS on.
        """
        options = options or {}
        authorities = options.get("tls_client_ca") or given.tls_client_ca
        certificate, key = options.get("tls_certificate"), options.get("tls_key")
        if not authorities and not (certificate or key):
            return None
        return cls(certificate or given.tls_certificate, key or given.tls_key, authorities)

    @classmethod
    def of_client(cls, given: StreamSettings, options: dict[str, str | None]) -> TlsFiles:
        """Returns a follower's files: the follower's certificate and key, and the authorities for the server's certificate.

        Options take precedence over settings.
        """
        certificate = options.get("tls_certificate") or given.tls_certificate
        key = options.get("tls_key") or given.tls_key
        return cls(certificate, key, options.get("tls_ca") or given.tls_server_ca)


class Certificates:
    """The server's TLS context, which is reloaded when the files of certificate, key or authorities change.

    The constructor raises `BadCertificate` if a file is not given or cannot be used.
    """

    def __init__(self, files: TlsFiles) -> None:
        for name, file in (
            ("--tls-certificate", files.certificate),
            ("--tls-key", files.key),
            ("--tls-client-ca", files.authorities),
        ):
            if not file:
                setting = f"REPLSITE_{name[2:].upper().replace('-', '_')}"
                raise BadCertificate(
                    f"TLS needs a certificate, its key, and the authorities of clients: give {name} or {setting}."
                )
        self._files = files
        self._checked_at = time.monotonic()
        # Stamps are taken before the files are read. A file that changes in between has another stamp at the next check.
        self._stamps = self._stamp()
        self._context = server_context(files)

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context for a new connection. If changed files cannot be used, returns the previous context.

        Checks at most every `CHECK_SECONDS` if the files have changed.
        """
        now = time.monotonic()
        if now >= self._checked_at + CHECK_SECONDS:
            self._checked_at = now
            self._reload_if_changed()
        return self._context

    def _reload_if_changed(self) -> None:
        stamps = self._stamp()
        if stamps == self._stamps:
            return
        # The stamps are stored even if loading fails. Example: the certificate is replaced, and its key a second later.
        # To load the new certificate with the old key fails. Then the key's new stamp causes another attempt.
        self._stamps = stamps
        try:
            self._context = server_context(self._files)
            log.info("tls.certificates_read_again", certificate=self._files.certificate)
        except BadCertificate as error:
            log.warning("tls.old_certificates_stay", error=str(error))

    def _stamp(self) -> tuple[tuple[int, int] | None, ...]:
        files = (self._files.certificate, self._files.key, self._files.authorities)
        return tuple(_stamp(Path(file)) for file in files)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino  # a file renamed over the old one may keep its time, but is another inode


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Returns a TLS context that asks for a client certificate. Raises `BadCertificate`.

    A client without a certificate completes the handshake, so that the server can send it the reason of the refusal.
    The caller must therefore check that the client has sent a certificate.
    """
    context = _ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_OPTIONAL
    _load_certificate(context, files)
    try:
        context.load_verify_locations(files.authorities)
    except (OSError, ssl.SSLError) as error:
        raise BadCertificate(f"The authorities {files.authorities} cannot be read: {_words(error)}.") from error
    return context


def checking_context(authorities: str | None = None) -> ssl.SSLContext:
    """Returns a TLS context that checks a server's name and certificate, by the same rules on every Python version.

    Python 3.13 changed two defaults, and this function restores the earlier ones. Python 3.13 refuses certificates
    without key identifiers, but openssl 3.0 creates such certificates, and a site may use such a certificate for years.
    Python 3.13 also accepts an intermediate authority as a root.
    """
    context = ssl.create_default_context(cafile=authorities)
    context.verify_flags &= ~(ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN)
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Returns a TLS context that checks the server's name and certificate, and sends the client's certificate, if any.

    Raises `BadCertificate`.
    """
    try:
        context = checking_context(files.authorities or None)
    except (OSError, ssl.SSLError) as error:
        raise BadCertificate(f"The authorities {files.authorities} cannot be read: {_words(error)}.") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.certificate:
        _load_certificate(context, files)
    return context


def _load_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        context.load_cert_chain(files.certificate, files.key or None, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise BadCertificate(
            f"The certificate {files.certificate} with the key {files.key} cannot be used: {_words(error)}."
        ) from error


def _no_password() -> str:
    raise BadCertificate(
        "The TLS key is protected by a password, and a server cannot ask for it: store the key without one."
    )


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return error.strerror or str(error)


@dataclass(frozen=True, slots=True)
class Handshake:
    """What to call for the connections whose handshakes a task begins.

    ``when_handled`` is called when bytes of the client were handled, and ``when_failed`` with the error of the handshake.
    ``when_turn_ends`` is called when more records of the client are there than it may have handled at a time: nothing more
    of its input is handled until the event loop reads again.
    """

    when_handled: Callable[[], None]
    when_failed: Callable[[ssl.SSLError], None]
    when_turn_ends: Callable[[], None]


HANDSHAKE: ContextVar[Handshake | None] = ContextVar("HANDSHAKE", default=None)


class _ServerContext(ssl.SSLContext):
    """A TLS context for an event loop. With a `HANDSHAKE`, what a client may ask of the loop is bounded (`_Records`)."""

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *options: Any, **more: Any) -> ssl.SSLObject:
        if (watch := HANDSHAKE.get()) is None:
            return super().wrap_bio(incoming, outgoing, *options, **more)
        given = ssl.MemoryBIO()
        made: Any = super().wrap_bio(given, outgoing, *options, **more)
        records = _Records(made, incoming, given, watch)
        made.do_handshake, made.read, made.unwrap = records.do_handshake, records.read, records.unwrap
        return cast(ssl.SSLObject, made)


class _Records:
    """Gives a client's records to OpenSSL one by one, and bounds what they cost.

    The event loop would give OpenSSL all that has come, up to 256 kB, and OpenSSL would handle all of it at once. Records
    without data may be very small and very costly: 9,000 requests for new keys (KeyUpdate), which need no certificate,
    take half a second, and each is answered. So only a few records without data are taken, and only `MOST_IN_TURN`
    records at a time.

    The event loop also closes a connection whose handshake fails, and drops the alert that tells the client why. Here it
    sees a failed handshake as one that waits for the client, and sends the alert.
    """

    def __init__(self, made: Any, incoming: ssl.MemoryBIO, given: ssl.MemoryBIO, watch: Handshake) -> None:
        self._go_on, self._read, self._unwrap = made.do_handshake, made.read, made.unwrap
        self._incoming, self._given, self._watch = incoming, given, watch
        self._head = b""
        self._has_failed = False
        self._in_turn = self._without_data = self._data_bytes = 0

    def do_handshake(self) -> None:
        """Does what `ssl.SSLObject.do_handshake` does."""
        has_input = False
        try:
            while not self._has_failed:
                try:
                    self._go_on()
                    self._without_data = 0
                    return
                except ssl.SSLWantReadError:
                    # A record may hold a piece of a ClientHello, or nothing: the client may never say more, and gets no answer.
                    if not self._give_record():
                        raise
                    has_input = True
                    self._count_without_data(MOST_OF_HANDSHAKE)
            self._incoming.read()  # of no use, and nothing else bounds it
            raise ssl.SSLWantReadError
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError as error:
            self._has_failed = True
            self._watch.when_failed(error)
            raise ssl.SSLWantReadError from error
        finally:
            if has_input:
                self._watch.when_handled()

    def read(self, *wanted: Any) -> Any:
        """Does what `ssl.SSLObject.read` does. Raises ``ssl.SSLError`` for too many records without data."""
        while True:
            try:
                found = self._read(*wanted)
            except ssl.SSLWantReadError:
                if self._in_turn >= MOST_IN_TURN:
                    self._in_turn = 0
                    self._watch.when_turn_ends()
                    raise
                if not self._give_record():
                    self._in_turn = 0
                    raise
                self._in_turn += 1
                self._count_without_data(MOST_WITHOUT_DATA + self._data_bytes // DATA_FOR_ONE_WITHOUT)
                continue
            self._without_data -= 1  # the last record had some
            self._data_bytes += found if isinstance(found, int) else len(found)
            return found

    def unwrap(self) -> Any:
        """Does what `ssl.SSLObject.unwrap` does. Raises ``ssl.SSLError`` for too many records without data."""
        while True:
            try:
                return self._unwrap()
            except ssl.SSLWantReadError:
                if not self._give_record():
                    raise
                self._count_without_data(MOST_WITHOUT_DATA + self._data_bytes // DATA_FOR_ONE_WITHOUT)

    def _give_record(self) -> bool:
        """Gives OpenSSL the next record. Returns false if it has not come whole."""
        if not self._head:
            if self._incoming.pending < RECORD_HEAD_BYTES:
                return False
            self._head = self._incoming.read(RECORD_HEAD_BYTES)
        length = int.from_bytes(self._head[-2:])
        if self._incoming.pending < min(length, _LONGEST_RECORD_BYTES):  # OpenSSL refuses a longer one by its head
            return False
        self._given.write(self._head + self._incoming.read(length))
        self._head = b""
        return True

    def _count_without_data(self, most: int) -> None:
        self._without_data += 1
        if self._without_data > most:
            raise ssl.SSLError(ssl.SSL_ERROR_SSL, "too many TLS records without data")


# --- failures -----------------------------------------------------------------------------------------------------


def refusal_of(error: ssl.SSLError) -> Refusal:
    """Returns the reason of a failed TLS handshake, as seen by the server."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Refusal.EXPIRED if error.verify_code in (_EXPIRED, _NOT_YET_VALID) else Refusal.UNTRUSTED
    reason = getattr(error, "reason", None) or ""  # our own have none
    if reason in ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_REQUIRED"):
        return Refusal.NO_CERTIFICATE
    if reason in ("UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "NO_PROTOCOLS_AVAILABLE"):
        return Refusal.OLD_TLS
    return Refusal.OWN_CERTIFICATE if "ALERT" in reason else Refusal.HANDSHAKE


#: OpenSSL's name of an error on the client's side (its end) -> the meaning and the remedy.
_MEANINGS = {
    "CERTIFICATE_REQUIRED": "the server requires a client certificate: give --tls-certificate and --tls-key",
    "CERTIFICATE_EXPIRED": "our client certificate has expired: have it renewed",
    "UNKNOWN_CA": "the server does not know the authority of our client certificate: use one that it trusts",
    "BAD_CERTIFICATE": "the server does not take our client certificate",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS there: follow tcp://HOST:PORT",
    "UNSUPPORTED_PROTOCOL": "the server requires another version of TLS",
    "PROTOCOL_VERSION": "the server requires another version of TLS",
}


def explain(error: ssl.SSLError) -> str:
    """Returns a text with the cause of a failed TLS handshake, as seen by the client. If a remedy is known, adds it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {error.verify_message}; name its authority with --tls-ca"
    reason = error.reason or str(error)
    return next((meaning for word, meaning in _MEANINGS.items() if reason.endswith(word)), f"TLS failed: {reason}")


# --- options of commands ------------------------------------------------------------------------------------------


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds ``--tls-certificate``, ``--tls-key`` and ``--tls-client-ca``. Their defaults are the settings."""
    parser.add_argument("--tls-certificate", metavar="FILE", help="certificate (chain) of the replication port, PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, PEM")
    parser.add_argument("--tls-client-ca", metavar="FILE", help="authorities of client certificates, PEM")


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds ``--tls-certificate``, ``--tls-key`` and ``--tls-ca``. Their defaults are the settings."""
    parser.add_argument("--tls-certificate", metavar="FILE", help="our client certificate, PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, PEM")
    parser.add_argument("--tls-ca", metavar="FILE", help="authorities of the server, PEM (default: the system's)")
