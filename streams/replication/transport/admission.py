"""Before a connection is taken: may it come from there, does it speak what it must, who is it. TLS is done here.

A gate stands between the socket's transport and the protocol above it. It looks at the first byte, makes the TLS handshake
when that is asked for, and is the transport of the protocol above from then on; plain text is handed over, and the gate is
out of the way. TLS is done on memory buffers, so refused clients get the alert or a line that says why, on any event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import ssl
from collections.abc import Callable
from typing import Any, Protocol, cast

from streams.replication.protocol.access import Speech
from streams.replication.transport.tls import Refusal, refusal_of

__all__ = ["Admission", "AdmissionOwner"]

#: The first byte of a TLS handshake; no line of the protocol begins with it.
_HANDSHAKE = 0x16
#: How long a client that may speak either is waited for before it is greeted in plain text.
FIRST_BYTE_SECONDS = 1.0
#: How long a refused client may take to read why.
LINGER_SECONDS = 2.0
_READ_BYTES = 64 * 1024

_NEEDS_TLS = b"ERROR this port speaks TLS only: connect with a client certificate\n"
_NEEDS_CERTIFICATE = b"ERROR a client certificate is needed, from an authority that this server trusts\n"


class AdmissionOwner(Protocol):
    """What a gate needs of its server."""

    handshake_limit_seconds: float

    def tls_context(self) -> ssl.SSLContext: ...
    def entered(self, gate: Admission, host: str) -> Refusal | None:
        """Why there is no room for one more; None: there is."""

    def passed(self, gate: Admission, above: asyncio.Protocol) -> None:
        """The gate is out of the way, or the transport of the protocol above."""

    def left(self, gate: Admission) -> None:
        """The connection at the gate is gone."""

    def refused(self, reason: Refusal, host: str, detail: str = "") -> None:
        """To be counted and logged."""


class _State(enum.Enum):
    FIRST_BYTE = "waiting for the first byte"
    HANDSHAKE = "shaking hands"
    OPEN = "TLS"
    REFUSED = "refused"
    HANDED_OVER = "handed over"


class Admission(asyncio.Protocol):
    """One connection that is not admitted yet; with TLS its transport for life."""

    def __init__(self, keeper: AdmissionOwner, speech_of: Callable[[str], Speech], above: asyncio.Protocol) -> None:
        self._keeper = keeper
        self._speech_of = speech_of
        self._above = above
        self._state = _State.FIRST_BYTE
        self._speech = Speech.TLS
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
        elif self._speech is Speech.NOTHING:
            self._refuse(Refusal.NETWORK, b"ERROR clients from this network are not allowed without TLS\n")
        elif self._speech is Speech.PLAIN:
            self._hand_over(b"")
        elif self._speech is Speech.EITHER:
            self._set_timer(FIRST_BYTE_SECONDS, lambda: self._hand_over(b""))
        else:
            self._set_timer(self._keeper.handshake_limit_seconds, self._time_out)

    def data_received(self, data: bytes) -> None:
        if self._state is _State.FIRST_BYTE:
            self._look_at_first_byte(data)
        elif self._state is not _State.REFUSED:
            self._incoming.write(data)
        if self._state is _State.HANDSHAKE:
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

    # --- who comes in ---------------------------------------------------------------------------------------------

    def _look_at_first_byte(self, data: bytes) -> None:
        if data[0] == _HANDSHAKE:
            self._cancel_timer()
            self._set_timer(self._keeper.handshake_limit_seconds, self._time_out)
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = self._keeper.tls_context().wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._state = _State.HANDSHAKE
            self._incoming.write(data)
        elif self._speech is Speech.EITHER:
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
            self._flush()  # the alert, which tells the client why
            self._refuse(refusal_of(error), b"", str(error))
            return
        self._flush()
        if not self._tls.getpeercert():
            self.write(_NEEDS_CERTIFICATE)
            self._say_good_bye()
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
        if data:
            self._above.data_received(data)

    def _time_out(self) -> None:
        self._refuse(Refusal.TIMEOUT, _NEEDS_TLS if self._state is _State.FIRST_BYTE else b"")

    def _refuse(self, reason: Refusal, text: bytes, detail: str = "") -> None:
        """Say why, and wait a moment for the client to read it: closing with unread input would destroy what is under way."""
        self._cancel_timer()
        self._state = _State.REFUSED
        self._keeper.refused(reason, self._host, detail)
        if text:
            self._raw.write(text)
        with contextlib.suppress(OSError, RuntimeError):  # the client may be gone already
            self._raw.write_eof()
        self._set_timer(LINGER_SECONDS, self._raw.abort)

    def _turn_away(self, reason: Refusal) -> None:
        """One too many: no time is lost with it. A line of text would only puzzle a client that speaks TLS."""
        self._state = _State.REFUSED
        self._keeper.refused(reason, self._host)
        if self._speech is not Speech.TLS:
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
            except ssl.SSLZeroReturnError:
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

    def _say_good_bye(self) -> None:
        with contextlib.suppress(ssl.SSLError):  # the client's own good-bye is not waited for
            self._tls.unwrap()
        self._flush()

    # --- the transport of the protocol above ----------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Encrypt and send."""
        with contextlib.suppress(ssl.SSLError):  # the client said good-bye: nobody is there to read
            rest = memoryview(data)
            while rest:
                rest = rest[self._tls.write(rest) :]
        self._flush()

    def close(self) -> None:
        """End TLS and the connection once everything has gone out."""
        if not self._raw.is_closing():
            self._say_good_bye()
            self._raw.close()

    def abort(self) -> None:
        """End the connection now."""
        self._cancel_timer()
        self._raw.abort()

    def is_closing(self) -> bool:
        """Whether no more can be sent."""
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        """No more input for now."""
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        """Input again."""
        self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        """Encrypted bytes that the kernel has not taken."""
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When `pause_writing` and `resume_writing` are called."""
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As of the socket; ``peercert`` and ``tls_version`` are of TLS."""
        if name == "peercert":
            return self._tls.getpeercert()
        if name == "tls_version":
            return self._tls.version()
        return self._raw.get_extra_info(name, default)
