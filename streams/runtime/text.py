"""Makes foreign text safe for labels of metrics, for pages, terminals and logs, and for the database (pure)."""

from __future__ import annotations

import re
from collections.abc import Container, Sized
from typing import Protocol

MOST_LABELS = 100
OTHER = "other"
#: Words of plain characters, with single spaces between them, such as ``pipeline statistics``. At most 60 characters.
_PLAIN_NAME = re.compile(r"(?=.{1,60}\Z)[A-Za-z0-9][A-Za-z0-9_.:-]*(?: [A-Za-z0-9_.:-]+)*")


class _Known(Sized, Container[str], Protocol):
    pass


def plain_label(name: str, known: _Known, most: int = MOST_LABELS) -> str:
    """Returns the name as a label, or ``other`` if the name has unusual characters or there are too many labels.

    ``known`` are the labels in use. A name outside ``known`` is accepted while there are fewer than ``most`` labels.
    """
    is_plain = _PLAIN_NAME.fullmatch(name) and (name in known or len(known) < most)
    return name if is_plain else OTHER


def safe_text(text: str | None, most: int | None = 200, *, keep: str = "") -> str:
    """Returns foreign text for a page, a terminal or a log: characters that are not printable become escapes.

    A text of more than ``most`` characters is cut. ``keep`` are characters that stay, such as line ends.
    """
    clean = text or ""
    if not clean.isprintable():
        clean = "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in clean)
    return clean if most is None or len(clean) <= most else f"{clean[: most - 1]}…"


def inert_text(text: str) -> str:
    """Returns a command's output in which only line ends and tabs move the cursor of a terminal.

    All other characters that are not printable become the escapes of JSON, so JSON keeps its meaning.
    """
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True))


def storable(text: str) -> str:
    """Returns the text as PostgreSQL can store it: without NUL, and with half a surrogate pair as its escape."""
    return text.replace("\0", "\ufffd").encode("utf-8", "backslashreplace").decode()


def error_words(error: BaseException) -> str:
    """Returns the error's message on one line. A foreign error may fail to make one."""
    try:
        return " ".join(str(error).split())
    except Exception as failure:  # noqa: BLE001 - whatever it is, the error itself is what counts
        return f"(no message: {type(failure).__name__})"


def one_line(error: BaseException) -> str:
    """Returns the error's message on one line, or the name of its class if the message is empty."""
    return error_words(error) or type(error).__name__
