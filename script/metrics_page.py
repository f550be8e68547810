"""Writes the tables of ``docs/reference/metrics.md`` from the table in the code: labels, types, Synapse's names, meanings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from replsite.metrics.table import CLUSTER, PROCESS, SYNAPSE
from script.generated_pages import with_tables

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "docs" / "reference" / "metrics.md"


def tables() -> dict[str, str]:
    """Returns the text of each table by the name of its mark."""
    exported = {one.name: one.exported for one in (*CLUSTER, *PROCESS)}
    theirs = [(one.exported, one.labels, one.type, exported[one.stands_for], one.help) for one in SYNAPSE]
    for one in (*CLUSTER, *PROCESS):
        for alias, name, labels in one.names_of_synapse():
            only = "".join(f"; only {key} {value}" for key, value in alias.where.items())
            theirs.append((name, labels, one.type, one.exported, f"the same figures{only}"))
    return {
        "cluster": _own(CLUSTER),
        "process": _own(PROCESS),
        "synapse": "\n".join(
            ["| name of Synapse | type | stands for | what |", "|---|---|---|---|"]
            + [
                f"| {_code(name, labels)} | {kind} | `{own}` | {about} |"
                for name, labels, kind, own, about in sorted(theirs)
            ]
        ),
    }


def _own(names: Iterable[Any]) -> str:
    rows = [f"| {_code(name.exported, name.labels)} | {name.type} | {name.help} |" for name in names]
    return "\n".join(["| metric | type | what |", "|---|---|---|", *rows])


def _code(name: str, labels: Iterable[str]) -> str:
    text = ",".join(labels)
    return f"`{name}{{{text}}}`" if text else f"`{name}`"


def files() -> dict[Path, str]:
    """Returns the page with its tables."""
    return {PAGE: with_tables(PAGE.read_text(), tables())}
