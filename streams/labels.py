"""Names that peers choose, as labels of metrics and history: plain ones, and a bounded number of them (pure)."""

from __future__ import annotations

import re
from collections.abc import Container, Sized
from typing import Protocol

__all__ = ["MOST_LABELS", "OTHER", "plain_label"]

MOST_LABELS = 100
OTHER = "other"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,59}")


class _Known(Sized, Container[str], Protocol):
    pass


def plain_label(name: str, known: _Known, most: int = MOST_LABELS) -> str:
    """The name, if it is plain and known, or there is room for one more; else ``other``."""
    is_plain = _PLAIN_NAME.fullmatch(name) and (name in known or len(known) < most)
    return name if is_plain else OTHER
