"""``tests/data/streams/worked_examples.json``, step by step, against the tracker and the start-up rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streams.core.tracker import PositionTracker
from streams.errors import SequenceBehind
from tests.support.simulated_database import SimulatedDatabase

EXAMPLES = json.loads((Path(__file__).parents[3] / "data/streams/worked_examples.json").read_text())


class Stage:
    """The processes of one example; each step of the data is a method."""

    def __init__(self, example: dict[str, Any]) -> None:
        self.database = SimulatedDatabase(example["backward"])
        self.processes: dict[str, PositionTracker] = {}
        self.names: dict[str, str] = {}
        self.owner: dict[int, str] = {}
        self.fetch: Any = None
        self.fetched: list[int] = []

    def rows(self, step: dict[str, Any]) -> None:
        ids = [abs(number) for number in step["ids"]]
        self.database.insert(step["writer"], *ids)
        if step["stored"]:
            self.database.store(step["writer"], max(ids))
        if step["sequence"]:
            self.database.sequence = max(self.database.sequence, *ids)

    def sequence(self, step: dict[str, Any]) -> None:
        self.database.sequence = step["to"]

    def store(self, step: dict[str, Any]) -> None:
        self.database.store(step["writer"], step["position"])

    def start(self, step: dict[str, Any]) -> None:
        if step.get("refused"):
            with pytest.raises(SequenceBehind):
                self.database.start(step["name"], step["writers"])
            return
        self.processes[step["process"]] = self.database.start(step["name"], step["writers"])
        self.names[step["process"]] = step["name"]

    def reserve(self, step: dict[str, Any]) -> None:
        tracker = self.processes[step["process"]]
        fetch = tracker.begin_fetch()
        ids = self.database.nextval(len(step["ids"]))
        assert ids == [abs(number) for number in step["ids"]]
        tracker.end_fetch(fetch, ids)
        self.owner.update(dict.fromkeys(ids, step["process"]))

    def complete(self, step: dict[str, Any], *, written: bool = True) -> None:
        ids = self.fetched if step["ids"] == "fetched" else [abs(number) for number in step["ids"]]
        process = self.owner[ids[0]]
        tracker, name = self.processes[process], self.names[process]
        if written:
            self.database.insert(name, *ids)
        tracker.complete(ids, written=written)
        if written:  # storing happens on success only
            self.database.store(name, tracker.announceable)

    def roll_back(self, step: dict[str, Any]) -> None:
        self.complete(step, written=False)

    def announce(self, step: dict[str, Any]) -> None:
        speaker = self.processes[step["process"]]
        assert speaker.announceable == abs(step["position"])
        for process, tracker in self.processes.items():
            if process != step["process"]:
                tracker.advance(self.names[step["process"]], abs(step["position"]))

    def told(self, step: dict[str, Any]) -> None:
        self.processes[step["process"]].advance(step["writer"], abs(step["position"]))

    def die(self, step: dict[str, Any]) -> None:
        del self.processes[step["process"]]

    def begin_fetch(self, step: dict[str, Any]) -> None:
        self.fetch = step["process"], self.processes[step["process"]].begin_fetch()

    def end_fetch(self, step: dict[str, Any]) -> None:
        process, fetch = self.fetch
        self.fetched = self.database.nextval()
        assert self.fetched == [step["id"]]
        self.processes[process].end_fetch(fetch, self.fetched)
        self.owner[step["id"]] = process


def seen(tracker: PositionTracker, writers: list[str], sign: int) -> dict[str, Any]:
    """What the tables show of a process."""
    return {
        "linear": tracker.linear * sign,
        "writers": {writer: tracker.position_of(writer) * sign for writer in writers},
        "entries": {writer: at * sign for writer, at in tracker.token().entries.items()},
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["name"])
def test_worked_example(example: dict[str, Any]) -> None:
    stage = Stage(example)
    shown: dict[str, Any] = {}
    for number, step in enumerate(example["steps"], start=1):
        getattr(stage, step["do"])(step)
        shown |= step.get("expect", {})
        for process, expected in shown.items():
            if process in stage.processes:
                found = seen(stage.processes[process], list(expected["writers"]), stage.database.sign)
                if not example["backward"]:
                    assert found == expected, f"{example['name']} step {number} {step['do']}: {process}"
                else:  # the tables leave out vectors there: entries of a backward stream lie "above" by absolute value
                    del found["entries"]
                    assert found == {k: v for k, v in expected.items() if k != "entries"}, (number, process)


def test_all_fourteen_examples_are_here() -> None:
    assert [example["name"] for example in EXAMPLES] == [f"E{number}" for number in range(1, 15)]
