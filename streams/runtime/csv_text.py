"""Writes tables as CSV for spreadsheets (pure)."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from io import StringIO
from typing import Any

from streams.runtime.text import safe_text

#: A spreadsheet takes a text that begins so for a formula, and would run what a client of the site has written. With
#: Japanese or Chinese settings the wide forms of the characters count, too.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def csv_text(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a table as CSV (RFC 4180). Times are in ISO 8601, control characters are escaped, None is empty.

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    file = StringIO()
    writer = csv.writer(file)
    writer.writerow(titles)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return file.getvalue()


def _cell(value: Any) -> Any:
    if value is None or (isinstance(value, (bool, int, float)) and type(value) in (bool, int, float)):
        return "" if value is None else value
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    text = safe_text(
        json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, (dict, list)) else str(value), None
    )
    return f"'{text}" if text.startswith(_FORMULA) else text
