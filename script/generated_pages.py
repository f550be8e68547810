"""What the scripts share that write pages from the code."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["write_or_compare"]


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
