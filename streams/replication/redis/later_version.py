"""Converts our rows and lines to the form of current versions of Synapse (pure).

Workers since 1.67 receive over Redis only, and some streams and rows have changed since 1.43. A worker closes its
connection when it receives a stream that it does not know. So if ``REPLSITE_REDIS_SYNAPSE_VERSION`` is a later version
than 1.43, streams that later versions do not have are left out. Rows that have other fields in later versions are
converted:

* ``events``: ``ev`` rows end with the field *outlier*. Our rows do not have this field, so false is added.
* ``receipts``: the ID of a thread comes before the data. Our receipts have no thread, so null is added.
* ``device_lists``: a row has the user, true if it is about signatures, and true if the servers to notify are known. We
  add false twice. Our rows that name a server instead of a user are left out.

Later versions send the facts of ``tag_account_data`` in ``account_data``, and those of ``user_signature`` in
``device_lists``. Our facts of ``tag_account_data`` and ``user_signature`` are left out nevertheless. A worker drops
facts that are not in order. So we would have to merge these facts by position with the facts of the other stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from streams.core.json_codec import decode_json, encode_json

__all__ = ["FIRST_LATER_VERSION", "GONE", "LaterLines", "is_later", "version_of"]

#: The earliest version that is known to have such rows.
FIRST_LATER_VERSION = (1, 157)
#: Streams that later versions do not have.
GONE = frozenset({"tag_account_data", "groups", "user_signature"})


def version_of(text: str) -> tuple[int, int]:
    """Parses a version: returns ``(1, 163)`` for ``1.163`` or ``1.163.2``.

    Raises ``ValueError`` if the text is not a version, or if the rows of this version are not known.
    """
    parts = text.split(".")
    if len(parts) not in (2, 3) or not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"{text!r} is no version of Synapse, such as 1.43 or 1.163")
    found = int(parts[0]), int(parts[1])
    if found != (1, 43) and found < FIRST_LATER_VERSION:
        raise ValueError(f"the rows of Synapse {text} are not known: say 1.43, or 1.157 or later")
    return found


def is_later(version: str) -> bool:
    """Returns true if the version has the rows and streams of later versions than 1.43. Raises ``ValueError``."""
    return version_of(version) >= FIRST_LATER_VERSION


def _event(row: Any) -> Any:
    kind, data = row
    return [kind, [*data, False]] if kind == "ev" else row


def _receipt(row: Any) -> Any:
    return [*row[:4], None, row[4]]


def _device_list(row: Any) -> Any:
    return [row[0], False, False] if row[0].startswith("@") else None


_ROWS: Mapping[str, Any] = MappingProxyType({"events": _event, "receipts": _receipt, "device_lists": _device_list})


def _later_row(stream: str, row: Any) -> Any:
    """Converts a row of our stream to the form of later versions. Returns None if the row must be left out."""
    make = _ROWS.get(stream)
    return row if make is None else make(row)


class LaterLines:
    """The conversion of the lines of one connection, in their order.

    The position of a fact does not change. If the last row of a fact is left out, its last remaining row gets the
    token. If all rows of a fact are left out, a POSITION is sent in place of the fact.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[bytes, bytes], list[bytes]] = {}
        self._reached: dict[tuple[bytes, bytes], bytes] = {}

    def turn(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yields the converted lines. Lines of commands other than RDATA and POSITION are unchanged."""
        for line in lines:
            word, _, rest = line.partition(b" ")
            if word == b"POSITION":
                yield from self._position(line, rest)
            elif word == b"RDATA":
                yield from self._rdata(line, rest)
            else:
                yield line

    def _position(self, line: bytes, rest: bytes) -> Iterator[bytes]:
        stream, writer, _, new = rest.split(b" ")
        if stream.decode() not in GONE:
            self._rows.pop((stream, writer), None)
            self._reached[stream, writer] = new
            yield line

    def _rdata(self, line: bytes, rest: bytes) -> Iterator[bytes]:
        stream, writer, token, text = rest.split(b" ", 3)
        name, key = stream.decode(), (stream, writer)
        if name in GONE:
            return
        if name not in _ROWS:
            self._reached[key] = token if token != b"batch" else self._reached.get(key, b"")
            yield line
            return
        rows = self._rows.setdefault(key, [])
        if (row := _later_row(name, decode_json(text.decode()))) is not None:
            rows.append(encode_json(row))
        if token == b"batch":
            return
        del self._rows[key]
        head = b"RDATA %b %b " % key
        yield from (head + b"batch " + one for one in rows[:-1])
        if rows:
            yield head + token + b" " + rows[-1]
        elif before := self._reached.get(key):  # no row is left: a POSITION takes followers past the fact
            yield b"POSITION %b %b %b %b" % (*key, before, token)
        self._reached[key] = token
