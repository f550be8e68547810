"""Counts of the wire: by word and by a bounded set of names, told to the table once."""

from __future__ import annotations

from collections import Counter

import pytest

from streams.replication.common import command_counts
from streams.replication.common.command_counts import CommandCounts, PendingCounts
from streams.runtime.text import MOST_LABELS, OTHER


def test_names_that_are_known_come_first():
    counts = CommandCounts()
    counts.know(f"known-{n}" for n in range(MOST_LABELS))
    assert counts.label("known-7") == "known-7"
    assert counts.label("new") == OTHER


def test_names_are_bounded_and_plain():
    counts = CommandCounts()
    labels = {counts.label(f"peer-{n}") for n in range(500)} | {counts.label("<b>"), counts.label("x" * 1_000)}
    assert len(labels) == MOST_LABELS + 1


def test_commands_of_connections_of_one_name_are_added():
    counts = CommandCounts()
    counts.add_sent("w", Counter(RDATA=3, PING=1))
    counts.add_sent("w", Counter(RDATA=2))
    assert counts.sent == {"RDATA w": 5, "PING w": 1}


class Told:
    """Takes the place of the table."""

    def __init__(self, monkeypatch, *, fails=False):
        self.rows, self.fails = [], fails
        monkeypatch.setattr(command_counts, "add_counts", self.add)

    def add(self, cursor, rows):
        if self.fails:
            raise OSError("away")
        self.rows += rows


def test_each_count_is_told_once(monkeypatch):
    told, untold = Told(monkeypatch), PendingCounts("rdata")
    untold.add("events", 2)
    untold.add("events")
    untold.store(None)
    untold.store(None)
    assert told.rows == [{"kind": "rdata", "name": "events", "total": 3}]


def test_what_could_not_be_told_is_told_later(monkeypatch):
    told, untold = Told(monkeypatch, fails=True), PendingCounts("rdata")
    untold.add("events", 2)
    with pytest.raises(OSError, match="away"):
        untold.store(None)
    untold.add("events")
    told.fails = False
    untold.store(None)
    assert told.rows == [{"kind": "rdata", "name": "events", "total": 3}]
