"""What the reading commands show to people, beside the JSON that programs get."""

from __future__ import annotations

import io
import re

import pytest
from django.core.management import call_command

from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db


def shown(*arguments: str) -> tuple[str, int]:
    """Standard output and the exit status."""
    out = io.StringIO()
    try:
        call_command(*arguments, stdout=out)
    except SystemExit as end:
        return out.getvalue(), int(end.code or 0)
    return out.getvalue(), 0


def cells(text: str, first: str) -> list[str]:
    """The cells of the table's row that begins with that word."""
    line = next(line for line in text.splitlines() if line.strip("│ ").startswith(first))
    return [cell.strip() for cell in line.strip("│").split("│")]


@pytest.fixture
def made() -> MadeRoom:
    room = MadeRoom()
    room.message()
    return room


def test_a_timeline_is_a_table_with_whole_ids_and_tokens(made):
    store_room(made.events)
    text, status = shown("timeline", made.room_id)
    assert status == 0
    newest = made.events[-1].event_id
    row = next(line for line in text.splitlines() if newest in line)
    sent, sender, kind, value, event_id, token = (cell.strip() for cell in row.strip("│").split("│"))
    assert (sent, sender, kind, value) == ("2023-11-14 22:13:20 UTC", ALICE, "m.room.message", "x")
    assert event_id == newest and re.fullmatch(r"t\d+-\d+", token)
    assert [name for name in (event.event_id for event in made.events) if name not in text] == []


def test_a_state_is_a_table_that_marks_what_the_event_changed(made):
    store_room(made.events)
    text, status = shown("state_at", made.create.event_id)
    assert status == 0
    assert text.startswith(f"{made.create.event_id}: 1 entries after it, 1 changed by it")
    sent = "2023-11-14 22:13:20 UTC"
    assert cells(text, "m.room.create") == [
        "m.room.create", "", ALICE, sent, "version 10", made.create.event_id, "(none)"
    ]  # fmt: skip


def test_values_that_would_move_the_cursor_are_escaped(made):
    made.topic("\x1b[2J\u202e quiet")
    store_room(made.events)
    for text, _ in (shown("timeline", made.room_id), shown("state_at", made.events[-1].event_id)):
        assert r"\x1b[2J\u202e quiet" in text and not {"\x1b", "\u202e"} & set(text)


def test_a_users_timeline_shows_what_this_user_sees(made):
    message = made.message()
    made.redaction(message)
    store_room(made.events)
    text, status = shown("timeline", made.room_id, "--user", ALICE)
    assert status == 0 and message.event_id in text


def test_a_message_changes_nothing_of_the_state(made):
    store_room(made.events)
    text, _ = shown("state_at", made.events[-1].event_id)
    assert "0 changed by it" in text and cells(text, "m.room.create")[-1] == ""


def test_states_that_are_not_known_are_named_and_the_status_is_one(made):
    above = made.message(prev=["$gone"])
    store_room(made.events)
    text, status = shown("state_at", above.event_id, "$nowhere")
    assert (text, status) == (f"{above.event_id}: unresolved\n$nowhere: unknown\n", 1)


def test_visibility_is_explained_in_a_table(made):
    store_room(made.events)
    text, status = shown("explain_visibility", ALICE, made.create.event_id, "$nowhere")
    assert status == 1
    assert cells(text, made.create.event_id)[1:5] == ["yes", "yes", "no", "shared"]
    assert cells(text, "$nowhere")[-1] == "unknown"
