"""Admission of a TCP connection: checks limits, the client's network, the first byte and the certificate, and does TLS.

An `Admission` sits between the socket's transport and the application protocol above it. If the client uses plain text,
the `Admission` passes the socket's transport to the protocol above, and its work is done. If the client uses TLS, the
`Admission` remains, as the transport of the protocol above. TLS runs on memory buffers (``ssl.MemoryBIO``). A refused
client therefore receives the TLS alert, or a line with the reason, on any event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

from streams.replication.protocol.access import AllowedTransport
from streams.replication.transport.tls import Refusal, refusal_of

__all__ = ["Admission", "AdmissionOwner", "Turns"]

#: The first byte of a TLS handshake. No line of the replication protocol begins with it.
_HANDSHAKE = 0x16
#: If a client may use plain text or TLS and sends nothing for this time, plain text is assumed.
FIRST_BYTE_SECONDS = 1.0
#: Time for a refused client to read the reason.
LINGER_SECONDS = 2.0
_READ_BYTES = 64 * 1024
SLICE_SECONDS = 0.005

_NEEDS_TLS = b"ERROR this port speaks TLS only: connect with a client certificate\n"
_NEEDS_CERTIFICATE = b"ERROR a client certificate is needed, from an authority that this server trusts\n"


class Turns:
    """A queue of handshake steps of all connections. Runs steps for ``SLICE_SECONDS``, and then pauses for the same time.

    A step of a TLS handshake costs the server almost a millisecond, but a hostile client only sends the same bytes many
    times. Without this queue, a client that begins 1,000 handshakes would block the event loop for a second.
    """

    def __init__(self) -> None:
        self._steps: deque[Callable[[], None]] = deque()
        self._is_due = False

    def add(self, step: Callable[[], None]) -> None:
        """Queues a step behind all earlier steps. The event loop calls the step later."""
        self._steps.append(step)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        begun = time.monotonic()
        try:
            while self._steps and time.monotonic() < begun + SLICE_SECONDS:
                self._steps.popleft()()
        finally:  # also after the error of one step
            self._is_due = bool(self._steps)
            if self._is_due:
                asyncio.get_running_loop().call_later(time.monotonic() - begun, self._take)


class AdmissionOwner(Protocol):
    """The interface of the server that an admission uses: limits, TLS context and callbacks."""

    handshake_limit_seconds: float
    handshakes: Turns

    def tls_context(self) -> ssl.SSLContext: ...
    def entered(self, gate: Admission, host: str) -> Refusal | None:
        """Takes a place for a new connection and returns null. If there is no place, returns the reason of the refusal."""

    def passed(self, gate: Admission, above: asyncio.Protocol) -> None:
        """Transfers the place of a connection from ``gate`` to the protocol ``above``, just before its ``connection_made``."""

    def left(self, gate: Admission) -> None:
        """Releases the place of a connection that ended during admission. Has no effect after `passed`."""

    def refused(self, reason: Refusal, host: str, detail: str = "") -> None:
        """Counts and logs a refusal."""


class _State(enum.Enum):
    FIRST_BYTE = "waiting for the first byte"
    HANDSHAKE = "shaking hands"
    OPEN = "TLS"
    REFUSED = "refused"
    HANDED_OVER = "handed over"


class Admission(asyncio.Protocol):
    """One connection during admission. With TLS it remains the connection's transport until the end."""

    def __init__(
        self, keeper: AdmissionOwner, speech_of: Callable[[str], AllowedTransport], above: asyncio.Protocol
    ) -> None:
        self._keeper = keeper
        self._speech_of = speech_of
        self._above = above
        self._state = _State.FIRST_BYTE
        self._speech = AllowedTransport.TLS
        self._host = ""
        self._raw: asyncio.Transport = cast(asyncio.Transport, None)
        self._incoming: ssl.MemoryBIO = cast(ssl.MemoryBIO, None)
        self._outgoing: ssl.MemoryBIO = cast(ssl.MemoryBIO, None)
        self._tls: ssl.SSLObject = cast(ssl.SSLObject, None)
        self._timer: asyncio.TimerHandle | None = None

    # --- from the socket ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        peer = self._raw.get_extra_info("peername")
        self._host = str(peer[0]) if isinstance(peer, tuple) else ""
        self._speech = self._speech_of(self._host)
        if (reason := self._keeper.entered(self, self._host)) is not None:
            self._turn_away(reason)
        elif self._speech is AllowedTransport.NOTHING:
            self._refuse(Refusal.NETWORK, b"ERROR clients from this network are not allowed without TLS\n")
        elif self._speech is AllowedTransport.PLAIN:
            self._hand_over(b"")
        elif self._speech is AllowedTransport.EITHER:
            self._set_timer(FIRST_BYTE_SECONDS, lambda: self._hand_over(b""))
        else:
            self._set_timer(self._keeper.handshake_limit_seconds, self._time_out)

    def data_received(self, data: bytes) -> None:
        # One read may contain the end of the handshake and the first application data. So the states are checked in order,
        # here and in `_step`, and one read may pass through several of them.
        if self._state is _State.FIRST_BYTE:
            self._detect_tls(data)
        elif self._state is not _State.REFUSED:
            self._incoming.write(data)
        if self._state is _State.HANDSHAKE:
            # Reading pauses until the step is executed. Otherwise a client could fill the memory while the step waits.
            self._raw.pause_reading()
            self._keeper.handshakes.add(self._step)
        elif self._state is _State.OPEN:
            self._read()

    def _step(self) -> None:
        """Continues the handshake, unless it ended while this step was queued. Then reads application data if TLS is open."""
        if self._state is _State.HANDSHAKE:
            self._raw.resume_reading()  # first: the protocol above may pause it again
            self._shake_hands()
        if self._state is _State.OPEN:
            self._read()

    def eof_received(self) -> bool:
        if self._state is _State.OPEN:
            return bool(self._above.eof_received())
        if self._state in (_State.FIRST_BYTE, _State.HANDSHAKE):
            self._refuse(Refusal.HANDSHAKE, b"", "the client ended the connection")
        return False

    def pause_writing(self) -> None:
        if self._state is _State.OPEN:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        if self._state is _State.OPEN:
            self._above.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self._keeper.left(self)
        if self._state is _State.OPEN:
            self._above.connection_lost(exc)
        elif self._state in (_State.FIRST_BYTE, _State.HANDSHAKE):
            self._keeper.refused(Refusal.HANDSHAKE, self._host, "the connection was lost")
        self._state = _State.REFUSED

    # --- admission ------------------------------------------------------------------------------------------------

    def _detect_tls(self, data: bytes) -> None:
        if data[0] == _HANDSHAKE:
            self._cancel_timer()
            self._set_timer(self._keeper.handshake_limit_seconds, self._time_out)
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = self._keeper.tls_context().wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._state = _State.HANDSHAKE
            self._incoming.write(data)
        elif self._speech is AllowedTransport.EITHER:
            self._hand_over(data)
        else:
            self._refuse(Refusal.NOT_TLS, _NEEDS_TLS)

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()  # sends the alert, which contains the reason
            self._refuse(refusal_of(error), b"", str(error))
            return
        self._flush()
        # The handshake succeeds without a client certificate (see `server_context`), so that the reason can be sent.
        if not self._tls.getpeercert():
            self.write(_NEEDS_CERTIFICATE)
            self._close_tls()
            self._refuse(Refusal.NO_CERTIFICATE, b"")
            return
        self._cancel_timer()
        self._keeper.passed(self, self._above)
        self._state = _State.OPEN
        self._above.connection_made(self)  # type: ignore[arg-type]  # has what the protocol above uses of a transport

    def _hand_over(self, data: bytes) -> None:
        self._cancel_timer()
        self._keeper.passed(self, self._above)
        self._state = _State.HANDED_OVER
        self._raw.set_protocol(self._above)
        self._above.connection_made(self._raw)
        if data:  # the read that contained the first byte
            self._above.data_received(data)

    def _time_out(self) -> None:
        self._refuse(Refusal.TIMEOUT, _NEEDS_TLS if self._state is _State.FIRST_BYTE else b"")

    def _refuse(self, reason: Refusal, text: bytes, detail: str = "") -> None:
        """Sends ``text``, if it is not empty, and closes the connection after ``LINGER_SECONDS``."""
        self._cancel_timer()
        self._state = _State.REFUSED
        self._keeper.refused(reason, self._host, detail)
        if text:
            self._raw.write(text)
        with contextlib.suppress(OSError, RuntimeError):  # the client may be gone already
            self._raw.write_eof()
        # Closing now, while input of the client is unread, would reset the connection and destroy the text under way.
        self._set_timer(LINGER_SECONDS, self._raw.abort)

    def _turn_away(self, reason: Refusal) -> None:
        """Closes a connection at once for which there is no place.

        If the client may use plain text, first sends the reason.
        """
        self._state = _State.REFUSED
        self._keeper.refused(reason, self._host)
        # A client that uses TLS could not make sense of a line of text.
        if self._speech is not AllowedTransport.TLS:
            self._raw.write(b"ERROR too many connections\n")
        self._raw.close()

    def _set_timer(self, seconds: float, call: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, call)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- bytes ----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        while True:
            try:
                data = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                self._flush()
                return
            except ssl.SSLZeroReturnError:  # close_notify: the client ended TLS in order
                data = b""
            except ssl.SSLError:
                self._flush()
                self.abort()
                return
            if not data:
                self._above.eof_received()
                return
            self._above.data_received(data)

    def _flush(self) -> None:
        if (data := self._outgoing.read()) and not self._raw.is_closing():
            self._raw.write(data)

    def _close_tls(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # the client's close_notify is not waited for
            self._tls.unwrap()
        self._flush()

    # --- the transport of the protocol above ----------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Encrypts and sends the bytes. Drops them if the client has ended TLS."""
        with contextlib.suppress(ssl.SSLError):  # the client has ended TLS, so it will not read
            rest = memoryview(data)
            while rest:
                rest = rest[self._tls.write(rest) :]
        self._flush()

    def close(self) -> None:
        """Ends TLS, and closes the connection after all written bytes have been sent."""
        if not self._raw.is_closing():
            self._close_tls()
            self._raw.close()

    def abort(self) -> None:
        """Closes the connection at once. Unsent bytes are lost."""
        self._cancel_timer()
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Returns the number of encrypted bytes that the kernel has not accepted yet."""
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Sets the limits, in encrypted bytes, at which `pause_writing` and `resume_writing` are called."""
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns TLS values for the names ``peercert`` and ``tls_version``, and else the socket transport's value."""
        if name == "peercert":
            return self._tls.getpeercert()
        if name == "tls_version":
            return self._tls.version()
        return self._raw.get_extra_info(name, default)
