"""The plan for 10^9 events: its sums follow from its own figures, and the sizes that it names are those of the program."""

from __future__ import annotations

import re

from pipeline.frames.packs import EVENTS_PER_PACK
from pipeline.importing.job import PART_BYTES
from pipeline.source.options import ReadOptions
from tests.support.session import PROJECT

PAGE = (PROJECT / "docs" / "explanation" / "scale.md").read_text()
AT = 1e9


def rows(header: str) -> list[list[str]]:
    """The cells of the table with that header line."""
    _, _, below = PAGE.partition(f"{header}\n")
    assert below, f"the page has no table {header}"
    lines = [line for line in below.split("\n\n")[0].splitlines()[1:] if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def number(text: str) -> float:
    return float(re.match(r"[\d,.]+", text)[0].replace(",", ""))


def test_what_an_event_costs_times_a_thousand_million_is_what_the_page_plans_for():
    figures = rows("| figure | for an event | growth | at 10^9 |")
    assert len(figures) >= 10
    for name, each, growth, total in figures:
        assert number(growth) <= 1.25, f"{name} grows faster than the events"
        expected = number(each) * AT / (1e12 if each.endswith("bytes") else 3.6e9)
        assert abs(number(total) - expected) <= (0.006 if each.endswith("bytes") else 0.06), (name, each, total)


def test_core_hours_are_the_microseconds_times_a_thousand_million():
    for name, each, total in rows("| | for an event | 10^9 events |"):
        assert abs(number(total) - number(each) * AT / 3.6e9) <= 1, name


def test_the_sizes_of_pieces_are_those_of_the_program():
    read = ReadOptions(dsn="", stream="events")
    pieces = " ".join(" ".join(row) for row in rows("| | cut into | at 10^8 events |"))
    for size in (EVENTS_PER_PACK, read.rows_per_partition, read.max_rows):
        assert f"{size:,}" in pieces
    assert f"parts of {PART_BYTES // 2**20} MiB" in pieces
