#!/usr/bin/env python
"""Writes the pages and pictures that follow from the code.

With ``--check`` it only compares, as ``tests/docs/test_generated_pages.py`` does.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

__all__ = ["SCRIPTS", "made", "with_tables", "write_or_compare"]

PROJECT = Path(__file__).resolve().parent.parent
SCRIPTS = (
    "architecture_picture", "dataflow_picture", "errors_page", "frames_page", "metrics_page", "models_page", "options_page",
    "settings_page",
)  # fmt: skip


def made() -> dict[Path, str]:
    """Returns the text of each file. Django must be set up."""
    return {path: text for name in SCRIPTS for path, text in import_module(f"script.{name}").files().items()}


def with_tables(text: str, tables: Mapping[str, str], word: str = "table") -> str:
    """Returns the text of a page with each table between its marks replaced."""
    for mark, lines in tables.items():
        begin, end = f"<!-- {word} {mark} -->", f"<!-- end of {word} {mark} -->"
        found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        text = found.sub(lambda _, inner=f"{begin}\n\n{lines}\n\n{end}": inner, text)
    return text


def write_or_compare(files: Mapping[Path, str]) -> int:
    """Writes the files. With ``--check`` on the command line only compares them, and returns 1 if one differs."""
    if "--check" not in sys.argv[1:]:
        for path, text in files.items():
            path.write_text(text)
        return 0
    old = [path.name for path, text in files.items() if not path.exists() or path.read_text() != text]
    if old:
        sys.stderr.write(f"{', '.join(old)}: not what the code says: run script/generated_pages.py\n")
    return int(bool(old))


if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
    import django

    django.setup()
    sys.exit(write_or_compare(made()))
