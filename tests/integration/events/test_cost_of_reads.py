"""What a reader asks of a large room, or a user with many rooms of a sync, reads no more rows than of a small one."""

from __future__ import annotations

import pytest

from events.models import Event
from events.reading.pages import events_around, timeline, visible_to
from events.reading.state_at import state_at
from events.sending.send import LocalRoom, NewEvent, create_room
from events.sync.sync import sync
from events.visibility.access import erase_user
from events.visibility.explain import explain_visibility
from state.groups.filters import StateFilter
from state.store import entries, full_state
from streams.db.driver import PREPARED_FROM_USE
from tests.support.rows_read import large_tables, pages_read, rows_read, rows_read_in_transactions
from tests.support.syncing import heard

pytestmark = pytest.mark.django_db(transaction=True)
ANN, BOB = "@ann:site", "@bob:site"
FEW, MANY = 10, 200
MEMBERS = 20, 600


def talking_room(members: int) -> LocalRoom:
    room = create_room(ANN, version="11")
    users = [f"@user-{number}:site" for number in range(members)]
    room.add([NewEvent(user, "m.room.member", {"membership": "join"}, state_key=user) for user in users])
    room.add([NewEvent(ANN, "m.room.message", {"body": str(number)}) for number in range(30)])
    return room


@pytest.mark.parametrize(
    "ask",
    [
        lambda ids: list(explain_visibility(ANN, ids)),
        lambda ids: visible_to(ANN, ids),
        lambda ids: events_around(ids[10], ANN, 10),
    ],
    ids=["explain_visibility", "visible_to", "events_around"],
)
def test_a_question_about_messages_reads_as_much_in_a_large_room(ask):
    counts = []
    for members in (FEW, MANY):
        ids = [event.event_id for event in timeline(talking_room(members).room_id, ANN, 25).events]
        with large_tables():
            for _ in range(PREPARED_FROM_USE):
                ask(ids)
            counts.append(rows_read(lambda ids=ids: ask(ids)))
    few, many = counts
    assert 0 < many <= few + 10


def changing_room(members: int) -> LocalRoom:
    """A room in which each of the newest events has another state, and what readers look up is old."""
    room = create_room(ANN, version="11")
    users = [f"@user-{number}:site" for number in range(members)]
    room.add([NewEvent(user, "m.room.member", {"membership": "join"}, state_key=user) for user in users])
    for number in range(15):
        room.add([
            NewEvent(ANN, "m.room.topic", {"topic": str(number)}, state_key=""),
            NewEvent(users[0], "m.room.message", {"body": str(number)}),
        ])  # fmt: skip
    return room


def groups_of(ids: list[str]) -> list[int]:
    return sorted(set(Event.objects.filter(event_id__in=ids).values_list("state_group", flat=True)))


RARE = StateFilter.at([("m.room.create", ""), ("m.room.name", "")])


@pytest.mark.parametrize(
    "ask",
    [
        lambda ids: list(explain_visibility(ANN, ids)),
        lambda ids: visible_to(ANN, ids),
        lambda ids: events_around(ids[10], ANN, 10),
        lambda ids: state_at(ids[10], only=RARE),
        lambda ids: [full_state(group, only=RARE) for group in groups_of(ids)],
        lambda ids: entries(groups_of(ids), [*RARE.keys, ("m.room.member", ANN)]),
    ],
    ids=["explain_visibility", "visible_to", "events_around", "state_at", "full_state", "entries"],
)
@pytest.mark.usefixtures("new_tables")
def test_a_lookup_of_old_state_reads_as_many_pages_in_a_large_room(ask):
    rooms = [changing_room(members) for members in MEMBERS]
    erase_user("@user-0:site")
    pages = []
    for room in rooms:  # both are stored, so the indexes have one height
        ids = [event.event_id for event in timeline(room.room_id, ANN, 25).events]
        with large_tables():
            for _ in range(PREPARED_FROM_USE):
                ask(ids)  # functions and repeated queries are planned
            pages.append(pages_read(lambda ids=ids: ask(ids)))
    few, many = pages
    assert 0 < many <= 1.1 * few


def synced_after_a_join(user: str, rooms: int) -> int:
    """Rows that a sync reads after the user has joined one more room."""
    for _ in range(rooms):
        create_room(user)
    heard()
    token = sync(user).next_batch
    counts = []
    with large_tables():
        for _ in range(2):
            room = create_room(BOB)
            room.join(user)
            heard()
            answers = []
            counts.append(
                rows_read_in_transactions(lambda token=token, answers=answers: answers.append(sync(user, token)))
            )
            (answer,) = answers
            assert [found.room_id for found in answer.rooms.joined] == [room.room_id]
            token = answer.next_batch
    return min(counts)


def test_a_sync_after_a_join_reads_nothing_of_the_other_rooms():
    few, many = synced_after_a_join("@few:site", FEW), synced_after_a_join("@many:site", MANY)
    assert 0 < many <= few + (MANY - FEW) // 2, "one row of each other room would be more"
