"""What the explanations show is what the program does."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from events.models import Event, EventVisibility, VisibleEvent
from tests.support.made_rooms import ALICE, BOB, MadeRoom
from tests.support.persisted_rooms import incoming, persist

PAGES = Path(__file__).resolve().parents[2] / "docs"


def table_rows(page: str, header: str) -> list[list[str]]:
    """The cells of the table with that header line."""
    lines = (PAGES / page).read_text().splitlines()
    begin = lines.index(header) + 2
    rows = []
    for line in lines[begin:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


STEPS = table_rows("explanation/path-of-a-fact.md", "| step | where |")


@pytest.mark.parametrize("row", STEPS, ids=lambda row: row[0][:30])
def test_every_step_of_a_path_names_real_code(row: list[str]) -> None:
    names = re.findall(r"`([a-z_.A-Z]+)`", row[-1])
    assert names
    for name in names:
        assert resolves(name), name


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, or an attribute (of an attribute) of one."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return True
    return False


@pytest.mark.django_db(transaction=True)
def test_the_worked_example_of_visibility_is_true() -> None:
    made = MadeRoom(ruled=True)
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    made.member(BOB, "join")
    made.message()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    made.message()
    made.member(BOB, "leave")
    made.message()
    persist([incoming(event) for event in made.events])
    names = {None: "room", ALICE: "Alice", BOB: "Bob"}
    places = {position: n for n, position in enumerate(_positions(), start=1)} | {None: "null"}
    stored = [
        [f"`{row.kind}`", names[row.user_id], str(places[row.first]), str(places[row.last])]
        for row in EventVisibility.objects.order_by("first", "kind")
    ]
    assert [
        cells[:4] for cells in table_rows("explanation/visibility.md", "| kind | whose | first | last | why |")
    ] == stored
    seen = {
        name: {event.stream_ordering for event in VisibleEvent.objects.filter(user_id=user)}
        for user, name in names.items()
        if user
    }
    for event, alice, bob, _ in table_rows("explanation/visibility.md", "| event | Alice | Bob | why |"):
        position = _positions()[int(event) - 1]
        assert [position in seen["Alice"], position in seen["Bob"]] == [alice == "sees it", bob == "sees it"], event


def _positions() -> list[int]:
    return list(Event.objects.order_by("stream_ordering").values_list("stream_ordering", flat=True))
