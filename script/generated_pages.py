"""What the scripts share that write pages from the code."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["with_tables", "write_or_compare"]


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """Returns the text of a page with each table between its marks replaced."""
    for mark, lines in tables.items():
        begin, end = f"<!-- table {mark} -->", f"<!-- end of table {mark} -->"
        found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        text = found.sub(lambda _, inner=f"{begin}\n\n{lines}\n\n{end}": inner, text)
    return text


def write_or_compare(made: Mapping[Path, str], script: str) -> int:
    """Writes the files. With ``--check`` on the command line only compares them, and returns 1 if one differs."""
    if "--check" not in sys.argv[1:]:
        for path, text in made.items():
            path.write_text(text)
        return 0
    old = [path.name for path, text in made.items() if not path.exists() or path.read_text() != text]
    if old:
        sys.stderr.write(f"{', '.join(old)}: not what the code says: run script/{script}\n")
    return int(bool(old))
