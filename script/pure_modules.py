#!/usr/bin/env python
"""Keeps the lists of pure modules in ``pyproject.toml``: strict types and the import contract are said per module there.

A module is pure when the docstring it opens with says ``(pure)``. Without arguments this rewrites the lists;
``--check`` only compares. ``tests/unit/test_purity.py`` imports the same modules with everything impure blocked.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
ROOMS = ("streams", "state", "events", "pipeline", "replsite")
BEGIN = "# --- pure modules: written by script/pure_modules.py"
END = "# --- end of pure modules"
FORBIDDEN = (
    *("django", "psycopg2", "twisted", "channels", "channels_redis", "daphne", "asgiref", "redis", "pyspark", "pandas"),
    *("pgpq", "prometheus_client", "django_prometheus", "structlog", "psutil"),
    *("socket", "select", "selectors", "ssl", "asyncio", "subprocess", "multiprocessing", "time", "random", "secrets"),
    *("logging", "urllib", "http"),
)


def pure_modules(project: Path = PROJECT) -> list[str]:
    """Dotted names of the modules whose docstring says that they are pure."""
    found = []
    for room in ROOMS:
        for path in sorted((project / room).rglob("*.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            if "(pure)" in docstring:
                parts = path.relative_to(project).with_suffix("").parts
                found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def section(modules: list[str]) -> str:
    """The part of ``pyproject.toml`` between the two marks."""
    names = "\n".join(f'    "{name}",' for name in modules)
    forbidden = "\n".join(f'    "{name}",' for name in FORBIDDEN)
    return f"""{BEGIN}
[[tool.mypy.overrides]]
module = [
{names}
]
check_untyped_defs = true
disallow_any_generics = true
disallow_incomplete_defs = true
disallow_subclassing_any = true
disallow_untyped_calls = true
disallow_untyped_decorators = true
disallow_untyped_defs = true
extra_checks = true
implicit_reexport = false
strict_equality = true
warn_return_any = true

[[tool.importlinter.contracts]]
name = "pure modules touch no edge"
type = "forbidden"
as_packages = false
source_modules = [
{names}
]
forbidden_modules = [
{forbidden}
]
{END}
"""


def replaced(text: str, modules: list[str]) -> str:
    """``pyproject.toml`` with the section as it should be; appended when it is not there."""
    before, begin, rest = text.partition(BEGIN)
    _, _, after = rest.partition(f"{END}\n")
    return (before if begin else f"{text.rstrip()}\n\n") + section(modules) + after


def main(arguments: list[str]) -> int:
    """Write or check; 1 when a check finds a difference."""
    path = PROJECT / "pyproject.toml"
    text = path.read_text()
    wanted = replaced(text, pure_modules())
    if arguments == ["--check"]:
        if text != wanted:
            sys.stderr.write("The lists of pure modules in pyproject.toml are old. Run script/pure_modules.py\n")
        return int(text != wanted)
    path.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
