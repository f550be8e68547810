"""Writes ``docs/reference/errors.md`` from the classes of errors and their docstrings."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "docs" / "reference" / "errors.md"
MODULES = (
    "streams.errors",
    "streams.replication.errors",
    "streams.jobs.errors",
    "state.errors",
    "events.errors",
    "pipeline.errors",
    "replsite.postgres.errors",
)
HEAD = """# Errors

Each error stands below its base, which catches it as well. A second name is an error of Python that it also is. Every
message says what is wrong, where, and what to do. Written by `script/generated_pages.py` from the code.
"""


def page() -> str:
    """Returns the text of the page."""
    return HEAD + "".join(f"\n## {name}\n\n" + "\n".join(_tree(name)) + "\n" for name in MODULES)


def _tree(name: str) -> Iterator[str]:
    found = [one for one in vars(import_module(name)).values() if inspect.isclass(one) and one.__module__ == name]
    own = [one for one in found if issubclass(one, Exception)]

    def below(base: type, depth: int) -> Iterator[str]:
        for one in own:
            if one.__bases__[0] is base:
                also = "".join(f", `{other.__name__}`" for other in one.__bases__[1:])
                text = f"* `{one.__name__}`{also}: {inspect.cleandoc(one.__doc__ or '')}".replace("``", "`")
                yield textwrap.fill(text, 118, initial_indent="  " * depth, subsequent_indent="  " * depth + "  ")
                yield from below(one, depth + 1)

    for base in dict.fromkeys(one.__bases__[0] for one in own):
        if base not in own:
            yield from below(base, 0)


def files() -> dict[Path, str]:
    """Returns the page."""
    return {PAGE: page()}
