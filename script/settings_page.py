"""Writes the tables of ``docs/reference/settings.md`` from the declarations: names, defaults, bounds, and the docstrings."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.pipeline_settings import PipelineSettings
from replsite.site_settings import SiteSettings, StartSettings
from script.generated_pages import with_tables
from streams.declared_settings import declared
from streams.stream_settings import StreamSettings

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "docs" / "reference" / "settings.md"
_UNITS = {"seconds": "s", "bytes": "bytes", "days": "days", "dir": "folder", "folder": "folder"}


def tables() -> dict[str, str]:
    """Returns the text of each table by the name of its mark."""
    kinds = {"start": StartSettings, "site": SiteSettings, "streams": StreamSettings, "pipeline": PipelineSettings}
    return {mark: _table(kind, is_django=mark != "start") for mark, kind in kinds.items()}


def _table(kind: type, *, is_django: bool) -> str:

    about = _docstrings(kind)
    declared_in = Path(inspect.getfile(kind)).relative_to(PROJECT)
    lines = [f"`{kind.__name__}` in `{declared_in}` declares them.", ""]
    lines += ["| variable | default | unit | allowed | meaning |", "|---|---|---|---|---|"]
    for name, one, how in declared(kind):
        default = one.default_factory() if one.default is MISSING else one.default
        variable = f"`{how.variable or name}`"
        if how.variable is None:
            variable += " (in Django's settings only)"
        elif how.variable and is_django:
            variable += f" (Django: `{name}`)"
        unit = how.unit or _UNITS.get(one.name.rpartition("_")[2], "JSON" if isinstance(default, dict) else "")
        lines.append(
            f"| {variable} | {how.default_text or _text(default)} | {unit} | {how.allowed} | {about[one.name]} |"
        )
    return "\n".join(lines)


def _docstrings(kind: type) -> dict[str, str]:
    """Returns the text below each field, on one line."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    body: Any = made.body  # type: ignore[attr-defined]
    return {
        field.target.id: " ".join(below.value.value.replace("``", "`").replace("|", "\\|").split())
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign)
    }


def _text(default: Any) -> str:
    if default is None:
        return "unset"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int | float):
        return f"{default:.12g}"
    text = ",".join(default) if isinstance(default, tuple) else str(default)
    return f"`{text}`" if text else "empty"


def files() -> dict[Path, str]:
    """Returns the page with its tables."""
    return {PAGE: with_tables(PAGE.read_text(), tables())}
