"""Writes ``docs/reference/figures.md`` and the figures of ``README.md`` from the results kept in ``docs/figures``.

``script/bench --page`` first takes over what ``build/bench`` has of newer results, with figures rounded to four digits.
"""

from __future__ import annotations

import ast
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from script.benchmarks.report import RESULTS

__all__ = ["Figure", "keep_newer", "kept", "page", "readme", "write"]

PROJECT = Path(__file__).resolve().parents[2]
KEPT = PROJECT / "docs" / "figures"
PAGE = PROJECT / "docs" / "reference" / "figures.md"
README = PROJECT / "README.md"
BEGIN, END = "<!-- figures: script/bench --page -->", "<!-- end of figures -->"
HEAD = """# Figures

What the benchmarks measured. `script/bench --page` writes this page from `docs/figures`, which keeps the last result of
each; other pages link here. A benchmark compares with a limit or with a *peer*, simpler code in the same run. Times
depend on the machine and its load; ratios less. `script/bench NAME` measures yours.
"""
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """One line of the figures that matter: a row of a result, and what is said of it."""

    what: str
    benchmark: str
    row: Mapping[str, Any]
    said: str

    def line(self, results: Mapping[str, Result]) -> list[str] | None:
        """The cells of the line; None where no such result is kept."""
        for row in results.get(self.benchmark, {}).get("rows", ()):
            if all(row.get(column) == value for column, value in self.row.items()):
                return [self.what, self.said.format(**row)]
        return None


#: The figures that matter, in their order; the README shows them too.
GLANCE = (
    Figure(
        "facts appended a second by 8 threads, each in its own transaction",
        "appends",
        {"transaction": "one append", "threads": 8},
        "{ours:,.0f}, which is {ratio:.2f} of bare inserts",
    ),
    Figure("from a commit to a follower, the middle of 200 followers", "latency", {"followers": 200}, "{p50:.1f} ms"),
    Figure(
        "lines delivered a second to 200 followers",
        "broadcast",
        {"followers": 200},
        "{ours:,.0f}, which is {ratio:.2f} of a bare server",
    ),
    Figure(
        "a follower that is far behind",
        "catchup",
        {"who": "follower", "view": "writer"},
        "{facts_per_second:,.0f} facts a second",
    ),
    Figure(
        "memory of a server with 2,000 idle followers",
        "idle",
        {"connections": 2000},
        "{server_mb:.0f} MB, {kb_each:.0f} kB each",
    ),
    Figure(
        "CPU for a message that comes alone in a room of 1,000 members",
        "persist",
        {"transaction": "1 message"},
        "{cpu:.1f} ms, {ratio:.1f} times bare inserts",
    ),
    Figure("CPU of a first sync of a user in 100 rooms", "sync", {"what": "initial sync"}, "{cpu:.0f} ms"),
    Figure(
        "import of 10^6 room events", "import_", {"import": "1,000,000"}, "{events_per_second:,.0f} events a second"
    ),
    Figure("purge of a large room", "purge", {"measure": "events per second"}, "{value:,.0f} events a second"),
    Figure("disk for a room event, its tables", "scale", {"figure": "all tables, bytes"}, "{for_an_event:,.0f} bytes"),
    Figure(
        "disk for a room event, its indexes", "scale", {"figure": "all indexes, bytes"}, "{for_an_event:,.0f} bytes"
    ),
)


def kept() -> dict[str, Result]:
    """Benchmark -> its result that is kept."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(KEPT.glob("*.json"))}


def keep_newer(results: Path = RESULTS) -> list[str]:
    """Takes over results that are newer than those kept; returns their names."""
    taken, have = [], kept()
    KEPT.mkdir(exist_ok=True)
    for path in sorted(results.glob("*.json")):
        found = json.loads(path.read_text())
        if path.stem in have and have[path.stem]["machine"]["at"] >= found["machine"]["at"]:
            continue
        (KEPT / path.name).write_text(json.dumps(_rounded(found), indent=1, ensure_ascii=False) + "\n")
        taken.append(path.stem)
    return taken


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return value


def page(results: Mapping[str, Result], names: Sequence[str]) -> str:
    """The text of the page."""
    parts = [HEAD, "\n## The figures that matter\n\n", *_glance(results)]
    for name in names:
        parts.append(f"\n## {name}\n\n{_docstring(name)}\n\n")
        parts.append(
            "".join(_section(results[name])) if name in results else f"No result is kept: run `script/bench {name}`.\n"
        )
    return "".join(parts)


def readme(text: str, results: Mapping[str, Result]) -> str:
    """The README with the figures that matter between their marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "".join([before, BEGIN, "\n\n", *_glance(results), "\n", END, after])


def write(names: Sequence[str]) -> None:
    """Writes both."""
    results = kept()
    PAGE.write_text(page(results, names))
    README.write_text(readme(README.read_text(), results))


def _glance(results: Mapping[str, Result]) -> Iterator[str]:
    lines = [line for figure in GLANCE if (line := figure.line(results))]
    yield from _table(["what", "figure"], lines)


def _section(result: Result) -> Iterator[str]:
    machine = result["machine"]
    load = f", load {machine['load']}" if "load" in machine else ""
    yield f"*{result['title']}*\n\n{machine['cores']} cores{load}, Python {machine['python']}, {machine['at'][:10]}.\n\n"
    columns = list(dict.fromkeys(column for row in result["rows"] for column in row))
    yield from _table(columns, [[_shown(row.get(column)) for column in columns] for row in result["rows"]])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    for row in rows:
        yield f"| {' | '.join(row)} |\n"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value).replace("|", r"\|")


def _docstring(name: str) -> str:
    """The first paragraph of a benchmark's docstring: what it measures."""
    text = ast.get_docstring(ast.parse((Path(__file__).parent / f"{name}.py").read_text())) or ""
    return textwrap.fill(text.split("\n\n")[0], 118, break_on_hyphens=False)
