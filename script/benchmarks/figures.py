"""Writes ``docs/reference/figures.md`` from the results kept in ``docs/figures``, and the figures of other pages.

These are ``README.md``, ``docs/explanation/peers.md`` and ``docs/explanation/scale.md``. It draws the pictures of growth, too.

``script/bench --page`` first takes over what ``build/bench`` has of newer results, with figures rounded to four digits.
"""

from __future__ import annotations

import ast
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from script.benchmarks.plot import picture
from script.benchmarks.report import BESIDE_OPEN, RESULTS

__all__ = ["Figure", "keep_newer", "kept", "page", "peers", "pictures", "readme", "scale", "write"]

PROJECT = Path(__file__).resolve().parents[2]
KEPT = PROJECT / "docs" / "figures"
PAGE = PROJECT / "docs" / "reference" / "figures.md"
README = PROJECT / "README.md"
PEERS = PROJECT / "docs" / "explanation" / "peers.md"
SCALE = PROJECT / "docs" / "explanation" / "scale.md"
IMAGES = PROJECT / "docs" / "images"
BEGIN, END = "<!-- figures: script/bench --page -->", "<!-- end of figures -->"
HEAD = """# Figures

What the benchmarks measured. `script/bench --page` writes this page from `docs/figures`, which keeps the last result of
each; other pages link here. A benchmark compares with a limit or with a *peer*, simpler code in the same run. Times
depend on the machine and its load; ratios less. Where it says *ms for a loop*, that is how long the same million of
steps in Python took, so that figures of different machines can be compared. `script/bench NAME` measures yours.
"""
Result = Mapping[str, Any]
_Panels = dict[str, dict[str, list[tuple[float, float]]]]
"""Panel -> figure -> (size, cost), ascending."""


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
    drawn = pictures(results)
    parts = [HEAD, "\n## The figures that matter\n\n", *_glance(results)]
    for name in names:
        parts.append(f"\n## {name}\n\n{_docstring(name)}\n\n")
        if IMAGES / f"{name}.svg" in drawn:
            parts.append(f"![How the figures of {name} grow with the number of rows.](../images/{name}.svg)\n\n")
        parts.append(
            "".join(_section(results[name])) if name in results else f"No result is kept: run `script/bench {name}`.\n"
        )
    return "".join(parts)


def readme(text: str, results: Mapping[str, Result]) -> str:
    """The README with the figures that matter between their marks."""
    return _between_marks(text, _glance(results))


def peers(text: str, results: Mapping[str, Result]) -> str:
    """The page of peers with the figures of the benchmark ``outbox`` between their marks."""
    return _between_marks(text, _side_by_side(results["outbox"])) if "outbox" in results else text


def scale(text: str, results: Mapping[str, Result]) -> str:
    """The plan for 10^9 events with the figures of the benchmark ``scale`` between their marks."""
    return _between_marks(text, _of_an_event(results["scale"])) if "scale" in results else text


_HOURS, _BYTES = 3.6e9, 1e12
_AT = 1e9
#: Figure of ``scale`` -> how the plan names it, and whether it is in bytes.
PLANNED = {
    "input, bytes": "JSON of the input",
    "events_eventjson, bytes": "`events_eventjson`, the stored JSON",
    "events_event, bytes": "`events_event`",
    "events_eventedge, bytes": "`events_eventedge`",
    "all tables, bytes": "all tables",
    "all indexes, bytes": "all indexes",
    "WAL, bytes": "WAL",
    "CPU of workers, us": "CPU of Spark's Python workers",
    "CPU of jvm, us": "CPU of the JVM",
    "CPU of postgres, us": "CPU of PostgreSQL",
    "CPU of driver, us": "CPU of the driver",
}


def _of_an_event(result: Result) -> Iterator[str]:
    rows = {row["figure"]: row for row in result["rows"]}
    sizes = [name[3:] for name in rows["input, bytes"] if name.startswith("at ") and name != "at_10^9"]
    yield f"Measured at {', '.join(sizes[:-1])} and {sizes[-1]} events. {_machine(result)}"
    yield "![How the cost of an event and of a fact grows with their number.](../images/scale.svg)\n\n"
    yield "The picture also shows the cost of a read and of an append in databases of these sizes. It must not grow at all.\n\n"
    lines = []
    for name, shown in PLANNED.items():
        each, growth = rows[name]["for_an_event"], rows[name]["growth"]
        if name.endswith("bytes"):
            told = [f"{each:,.0f} bytes", f"{growth:.2f}", f"{round(each) * _AT / _BYTES:,.2f} TB"]
        else:
            told = [f"{each:,.1f} µs", f"{growth:.2f}", f"{round(each, 1) * _AT / _HOURS:,.1f} h"]
        lines.append([shown, *told])
    yield from _table(["figure", "for an event", "growth", "at 10^9"], lines)


def pictures(results: Mapping[str, Result]) -> dict[Path, str]:
    """The picture of each benchmark of growth whose result is kept."""
    found = {}
    if "growth" in results:
        found[IMAGES / "growth.svg"] = _drawn(results["growth"], "What a row costs a job", _jobs(results["growth"]))
    if "scale" in results:
        found[IMAGES / "scale.svg"] = _drawn(
            results["scale"], "What an event or a fact costs", _costs(results["scale"])
        )
    return found


def _drawn(result: Result, title: str, panels: _Panels) -> str:
    said = f"CPU or bytes for a row, over that at the smallest size; 1 is linear. {_machine(result).strip()}"
    return picture(title, said, {name: figures for name, figures in panels.items() if figures})


def _jobs(result: Result) -> _Panels:
    panels: _Panels = {
        "purge and compress, µs": {},
        "statistics, µs": {},
    }
    for row in result["rows"]:
        panel = list(panels)[not row["job"].startswith(("purge", "compress"))]
        if row["growth"] is not None:
            panels[panel].setdefault(row["job"], []).append((row["rows"], row["cpu"]))
    return panels


_BESIDE = "beside so many: "
#: Panel -> how the names of its figures of ``scale`` begin.
_PANELS = {
    "imported: bytes for an event": ("input,", "all tables,", "all indexes,", "WAL,"),
    "imported: CPU for an event, µs": ("CPU,", "CPU of driver,", "CPU of jvm,", "CPU of workers,", "CPU of postgres,"),
    f"{_BESIDE}CPU, µs": (_BESIDE,),
}


def _costs(result: Result) -> _Panels:
    panels: _Panels = {name: {} for name in _PANELS}
    for row in result["rows"]:
        sized = {name: value for name, value in row.items() if name.startswith("at ") and value is not None}
        points = [(float(name[3:].replace(",", "")), float(value)) for name, value in sized.items()]
        if not points or points[0][1] <= 0:
            continue
        for panel, names in _PANELS.items():
            if row["figure"].startswith(names):
                panels[panel][row["figure"].removeprefix(_BESIDE).rpartition(",")[0]] = points
    return panels


def _between_marks(text: str, lines: Iterable[str]) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "".join([before, BEGIN, "\n\n", *lines, "\n", END, after])


def _side_by_side(result: Result) -> Iterator[str]:
    """Two tables: alone, and beside a transaction that stays open."""
    beside = [row for row in result["rows"] if row["what"].endswith(BESIDE_OPEN)]
    yield _machine(result)
    yield from _tools([row for row in result["rows"] if row not in beside])
    if beside:
        yield "\nThe same, beside a transaction that stays open:\n\n"
        yield from _tools([row | {"what": row["what"].removesuffix(BESIDE_OPEN)} for row in beside])


def _tools(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each tool and driver, a column for each thing that was measured."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        line = lines.setdefault((row["tool"], row["driver"]), {})
        parts = [f"{row[name]:.2g}" for name in ("cpu_application", "cpu_postgresql", "cpu")]
        line[row["what"]] = "{} + {} = {} ms, ".format(*parts) + f"{row['facts_per_second']:,.0f}/s"
        if row["p50"] != "":
            line["p50, p99"] = f"{row['p50']:,.1f}, {row['p99']:,.1f} ms"
    columns = list(dict.fromkeys(what for line in lines.values() for what in line))
    yield from _table(
        ["tool", "driver", *columns], [[*who, *(line.get(what, "") for what in columns)] for who, line in lines.items()]
    )


def write(names: Sequence[str]) -> None:
    """Writes the pages and the pictures."""
    results = kept()
    PAGE.write_text(page(results, names))
    README.write_text(readme(README.read_text(), results))
    PEERS.write_text(peers(PEERS.read_text(), results))
    SCALE.write_text(scale(SCALE.read_text(), results))
    for path, text in pictures(results).items():
        path.write_text(text)


def _glance(results: Mapping[str, Result]) -> Iterator[str]:
    lines = [line for figure in GLANCE if (line := figure.line(results))]
    yield from _table(["what", "figure"], lines)


def _section(result: Result) -> Iterator[str]:
    yield f"*{result['title']}*\n\n{_machine(result)}"
    columns = list(dict.fromkeys(column for row in result["rows"] for column in row))
    yield from _table(columns, [[_shown(row.get(column)) for column in columns] for row in result["rows"]])


def _machine(result: Result) -> str:
    machine = result["machine"]
    load = f", load {machine['load']}" if "load" in machine else ""
    loop = f" of {machine['loop_ms']} ms for a loop of 10^6 steps" if "loop_ms" in machine else ""
    return f"{machine['cores']} cores{loop}{load}, Python {machine['python']}, {machine['at'][:10]}.\n\n"


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
