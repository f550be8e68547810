"""Recognizes texts that are no JSON Lines, and says what they are and how to convert them (pure).

A line has one event, in UTF-8. ``foreign_form`` is asked about the begin of a file before an import, and about a line
that could not be parsed.
"""

from __future__ import annotations

import codecs
import re

BYTE_ORDER_MARK = codecs.BOM_UTF8
"""The mark that some programs write before JSON in UTF-8. It is ignored, as RFC 8259, 8.1, allows."""

_ENCODINGS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
#: A brace or bracket after white space, without a byte order mark. In UTF-8 such a text would have NUL bytes, which JSON never
#: has.
_UTF_32 = re.compile(rb"(?:[ \t\r\n]\0{3})*[{\[]\0{3}|(?:\0{3}[ \t\r\n])*\0{3}[{\[]")
_UTF_16 = re.compile(rb"(?:[ \t\r\n]\0)*[{\[]\0|(?:\0[ \t\r\n])*\0[{\[]")
#: In JSON there is a comma between two objects.
_OBJECTS_BETWEEN_CR = re.compile(rb"\A[^\n]*?\}[ \t]*\r[ \t\r]*\{")
_SPREAD = re.compile(rb"\{[ \t]*\r?\n\s*\"")
_RECORD_SEPARATOR = b"\x1e"
#: Bytes of a text in which the first two objects are searched for.
_SEARCHED = 64 * 1024


def foreign_form(text: bytes) -> str | None:
    """Returns what a text is, and the command that makes JSON Lines of it. None if it may be lines of events."""
    if (encoding := _encoding(text)) is not None:
        return f"{encoding} text, and events are read in UTF-8. Convert it: iconv -f {encoding} -t UTF-8"
    start = text.removeprefix(BYTE_ORDER_MARK).lstrip(b" \t\r\n")
    if start.startswith(_RECORD_SEPARATOR):
        return (
            "a JSON text sequence (RFC 7464): a record separator stands before each event. Make lines of it: "
            "tr -d '\\036' | jq -c ."
        )
    first, _, others = start.partition(b"\n")
    if start.startswith(b"[") and not (first.rstrip().endswith(b"]") and others.strip()):  # no lines of arrays
        return "a JSON array, and each event has a line of its own. Make lines of it: jq -c '.[]'"
    if _SPREAD.match(start):
        return "JSON that is spread over several lines, and each event has one line. Make lines of it: jq -c ."
    if _OBJECTS_BETWEEN_CR.search(text[:_SEARCHED]):
        return "JSON with carriage returns between the events, and a line ends with a line feed: tr '\\r' '\\n'"
    return None


def _encoding(text: bytes) -> str | None:
    for mark, encoding in _ENCODINGS.items():
        if text.startswith(mark):
            return encoding
    if _UTF_32.match(text):
        return "UTF-32"
    return "UTF-16" if _UTF_16.match(text) else None
