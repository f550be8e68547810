"""A redaction is a flag on its target, whichever comes first, however it comes; the live path and the import agree."""

import threading

import pytest
from django.db import connections
from msgspec.structs import replace

from events.columns import EVENT_COLUMNS
from events.integrity.repair import check_room, resync_room
from events.models import Event, EventVisibility
from events.models.visibility import VisibleEvent
from events.persist.rebuild_visibility import rebuild_visibility
from events.visibility.explain import explain_visibility
from events.visibility.rule import Rule
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom
from tests.support.persisted_rooms import incoming, persist, persist_all
from tests.support.ranges import stored_ranges
from tests.support.room_results import room_history
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)

SERVER = "a.test"
CAROL = f"@carol:{SERVER}"
"""Of the same server as Alice, and without power."""
MOD = "@mod:mods.test"
"""Of another server than everybody, and with the level to redact."""


def public_room(version="10", room_id="!made:a.test"):
    """A room with Alice, Bob, Carol and a moderator; everybody is judged by the rules."""
    made = MadeRoom(version, room_id, ruled=True)
    levels = {MOD: 50} if version == "12" else {ALICE: 100, MOD: 50}
    made.state("m.room.power_levels", "", {"users": levels})
    made.state("m.room.join_rules", "", {"join_rule": "public"})
    for user in (BOB, CAROL, MOD):
        made.member(user, "join")
    return made


def flags(*events):
    """Who redacted each of these, as stored."""
    found = dict(Event.objects.filter(event_id__in=[e.event_id for e in events]).values_list("event_id", "redacted_by"))
    return [found[event.event_id] for event in events]


def imported_flags(made, *events):
    """The same as an import of the room works it out."""
    at = EVENT_COLUMNS.index("redacted_by")
    rows = {row[0]: row[at] for row in room_history(made.events).events}
    return [rows[event.event_id] for event in events]


def persist_made(made, *last):
    """Persist the room one by one, the given events after all others."""
    late = {event.event_id for event in last}
    return persist_all([*(event for event in made.events if event.event_id not in late), *last])


CASES = [(BOB, BOB, True), (BOB, MOD, True), (BOB, ALICE, True), (ALICE, CAROL, True), (ALICE, BOB, False)]
"""(sender of the message, sender of the redaction, whether it applies)."""


@pytest.mark.parametrize("version", ["1", "2", "3", "10", "11", "12"])
def test_own_server_or_the_level_to_redact(version):
    made = public_room(version)
    pairs = [message_and_redaction(made, n, sender, redactor) for n, (sender, redactor, _) in enumerate(CASES)]
    persist_all(made.events, 100)
    messages = [message for message, _ in pairs]
    wanted = [
        redaction.event_id if applies else None for (_, redaction), (_, _, applies) in zip(pairs, CASES, strict=True)
    ]
    assert flags(*messages) == imported_flags(made, *messages) == wanted
    rejected = Event.objects.filter(rejected_reason__isnull=False, redacts__isnull=False).count()
    assert rejected == (1 if version in ("1", "2") else 0)  # later versions let it pass, and it has no effect


def message_and_redaction(made, number, sender, redactor):
    """In versions 1 and 2 the servers in the event IDs count."""
    ids = [{}, {}]
    if made.version in ("1", "2"):
        ids = [{"event_id": f"${name}{number}:{_server(user)}"} for name, user in (("x", sender), ("y", redactor))]
    message = made.send({"type": "m.room.message", "sender": sender, "content": {"body": "x"}, **ids[0]})
    parts = {"type": "m.room.redaction", "sender": redactor, "redacts": message.event_id, **ids[1]}
    if made.version in ("11", "12"):
        parts["content"] = {"redacts": parts.pop("redacts")}
    return message, made.send(parts)


def _server(user_id):
    return user_id.partition(":")[2]


@pytest.mark.parametrize("version, place", [("10", "content"), ("11", "top")])
def test_target_at_the_place_of_another_version_is_none(version, place):
    made = public_room(version)
    message = made.message()
    parts = {"content": {"redacts": message.event_id}} if place == "content" else {"redacts": message.event_id}
    made.send({"type": "m.room.redaction", "sender": ALICE, **parts})
    persist_made(made)
    assert flags(message) == imported_flags(made, message) == [None]


def test_create_event_is_never_redacted():
    made = public_room()
    made.redaction(made.create)
    persist_made(made)
    assert flags(made.create) == imported_flags(made, made.create) == [None]


@pytest.mark.parametrize("first", ["redaction", "target"])
def test_redaction_in_another_room_is_not_honoured(first):
    made, other = public_room(), public_room(room_id="!other:a.test")
    message = made.message()
    other.redaction(message)
    rooms = [made, other] if first == "target" else [other, made]
    for room in rooms:
        persist_made(room)
    assert flags(message) == [None]


def test_several_batches_lie_between_redaction_and_target():
    made = public_room()
    base = made.events[-1]
    message = made.message(sender=BOB)
    redaction = made.redaction(message, sender=MOD, prev=[base])
    persist_made(made, *(made.message(prev=[base]) for _ in range(3)), message)
    assert flags(message) == imported_flags(made, message) == [redaction.event_id]


def test_target_that_is_an_outlier_is_flagged_then_and_with_its_place():
    made = public_room()
    message = made.message(sender=BOB)
    redaction = made.redaction(message, sender=MOD, prev=[made.events[-2]])
    persist_made(made, replace(message, outlier=True), redaction)
    assert flags(message) == [redaction.event_id]
    persist([incoming(message)])
    assert flags(message) == [redaction.event_id]
    assert not Event.objects.get(event_id=message.event_id).outlier


def test_redaction_before_a_target_that_comes_as_outlier_first():
    made = public_room()
    message = made.message(sender=BOB)
    redaction = made.redaction(message, sender=MOD, prev=[made.events[-2]])
    persist_made(made, redaction, replace(message, outlier=True))
    assert flags(message) == [redaction.event_id]
    persist([incoming(message)])
    assert flags(message) == [redaction.event_id]


def test_import_flags_outliers_as_the_live_path_does():
    made = public_room()
    message = made.message(sender=BOB, outlier=True)
    redaction = made.redaction(message, sender=MOD, prev=[made.events[-2]])
    persist_made(made)
    assert flags(message) == imported_flags(made, message) == [redaction.event_id]


def test_redaction_that_is_an_outlier_counts_when_it_has_its_place():
    made = public_room()
    message = made.message(sender=BOB)
    redaction = made.redaction(message, sender=BOB)
    persist_made(made, replace(redaction, outlier=True))
    assert flags(message) == [None]
    persist([incoming(redaction)])
    assert flags(message) == [redaction.event_id]


def test_backfilled_target_of_a_redaction_that_is_here():
    made = public_room()
    message = made.message(sender=BOB)
    redaction = made.redaction(message, sender=MOD, prev=[made.events[-2]])
    persist_made(made, redaction)
    late = made.message(sender=BOB, prev=[made.events[-3]])
    early = made.redaction(late, sender=MOD, prev=[redaction])
    persist([incoming(early)])
    persist([incoming(late, backfilled=True)])
    assert flags(message, late) == [redaction.event_id, early.event_id]
    assert Event.objects.get(event_id=late.event_id).stream_ordering < 0


@pytest.mark.parametrize("sender, applies", [(MOD, True), (EVE, False)])
def test_backfilled_redaction_applies_where_its_sender_may_redact(sender, applies):
    made = public_room()
    if sender == EVE:
        made.member(EVE, "join")
    message = made.message(sender=BOB)
    persist_made(made)
    redaction = made.redaction(message, sender=sender, prev=[made.events[-1]])
    persist([incoming(redaction, backfilled=True)])
    assert flags(message) == [redaction.event_id if applies else None]


def test_rejected_redaction_has_no_effect():
    made = public_room()
    message = made.message(sender=BOB)
    redaction = made.redaction(message, sender="@stranger:b.test")
    persist_made(made)
    assert Event.objects.get(event_id=redaction.event_id).rejected_reason
    assert flags(message) == imported_flags(made, message) == [None]


def test_soft_failed_redaction_has_no_effect():
    made = public_room()
    message = made.message(sender=BOB)
    made.member(BOB, "ban", sender=ALICE)
    redaction = made.redaction(message, sender=BOB, prev=[message])
    persist_made(made)
    assert Event.objects.get(event_id=redaction.event_id).soft_failed
    assert flags(message) == imported_flags(made, message) == [None]


def test_redaction_of_a_redaction_leaves_its_target_redacted():
    made = public_room()
    message = made.message()
    redaction = made.redaction(message)
    second = made.redaction(redaction)
    persist_made(made)
    assert flags(message, redaction) == imported_flags(made, message, redaction)
    assert flags(message, redaction) == [redaction.event_id, second.event_id]


def test_of_two_redactions_the_first_that_applies_counts():
    made = public_room()
    message = made.message(sender=BOB)
    made.redaction(message, sender=EVE)
    first = made.redaction(message, sender=BOB)
    made.redaction(message, sender=ALICE)
    persist_made(made)
    assert flags(message) == imported_flags(made, message) == [first.event_id]


def test_level_is_that_before_the_redaction():
    made = public_room()
    messages = [made.message(sender=BOB) for _ in range(2)]
    early = made.redaction(messages[0], sender=MOD)
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    made.redaction(messages[1], sender=MOD)
    persist_made(made)
    assert flags(*messages) == imported_flags(made, *messages) == [early.event_id, None]


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_any_order_of_one_room_gives_the_same_flags(batch):
    made = public_room("11")
    messages = [made.message(sender=BOB) for _ in range(6)]
    base = made.events[-1]
    redactions = [made.redaction(message, sender=MOD, prev=[base]) for message in messages[::2]]
    events = [*made.events[: -len(messages) - len(redactions)], *messages, *redactions]
    persist_all(events, batch)
    wanted = [next((r.event_id for r in redactions if r.redacts == m.event_id), None) for m in messages]
    assert flags(*messages) == imported_flags(made, *messages) == wanted


def test_writers_that_store_targets_and_redactions_at_once_miss_none():
    made = public_room()
    base = made.events[-1]
    messages = [made.message(sender=BOB, prev=[base]) for _ in range(20)]
    redactions = [made.redaction(message, sender=MOD, prev=[base]) for message in messages]
    persist([incoming(event) for event in made.events[: made.events.index(base) + 1]])
    errors = []

    def work(events):
        try:
            persist_all(events, 2)
        except Exception as error:  # noqa: BLE001 - told to the main thread
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=[events]) for events in (messages, redactions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE_SECONDS)
    assert errors == []
    assert flags(*messages) == [redaction.event_id for redaction in redactions]


# --- gaps ---------------------------------------------------------------------------------------------------------


def backfill(*events):
    for event in events:
        outcome = persist([incoming(event, backfilled=True)])
        assert outcome.refused == []


def test_redaction_above_a_gap_counts_when_its_state_is_known():
    made = public_room()
    message = made.message(sender=BOB)
    between = made.message()
    redaction = made.redaction(message, sender=MOD)
    persist_all([event for event in made.events if event not in (between, redaction)])
    backfill(redaction)
    assert flags(message) == [None]
    backfill(between)
    assert flags(message) == [redaction.event_id]


@pytest.mark.parametrize("second", [False, True])
def test_redaction_that_is_rejected_when_its_state_is_known_no_longer_counts(second):
    made = public_room()
    joined = made.member(EVE, "join")
    message = made.message(sender=EVE)
    ban = made.member(EVE, "ban", sender=ALICE)
    auth = [made.create.event_id, made.events[2].event_id, joined.event_id]
    parts = {"type": "m.room.redaction", "sender": EVE, "redacts": message.event_id, "auth_events": auth}
    redaction = made.send(parts, prev=[ban])
    persist_all([event for event in made.events if event not in (ban, redaction)])
    backfill(redaction)
    assert flags(message) == [redaction.event_id]
    other = made.redaction(message, sender=MOD, prev=[message])
    if second:
        persist([incoming(other)])
    backfill(ban)
    assert Event.objects.get(event_id=redaction.event_id).rejected_reason
    assert flags(message) == [other.event_id if second else None]


@pytest.mark.parametrize("version", ["1", "10", "11"])
@pytest.mark.parametrize("batch", [1, 100])
def test_a_redaction_that_was_redacted_before_it_came_is_given_to_no_client(version, batch):
    """Nothing is left of what it named; the rule, the stored ranges and the view agree, and so does a rebuild."""
    made = public_room(version)
    message = made.message()
    empty = made.send({"type": "m.room.redaction"})
    last = made.message()
    persist_all(made.events, batch)
    shown = set(VisibleEvent.objects.filter(user_id=ALICE).values_list("event_id", flat=True))
    assert {message.event_id, last.event_id} <= shown and empty.event_id not in shown
    (told,) = explain_visibility(ALICE, [empty.event_id])
    assert (told.allowed, told.rule) == (False, Rule.REDACTION_WITHOUT_EFFECT)
    assert check_room(made.room_id).clean
    rows = stored_ranges(made.room_id)
    rebuild_visibility(made.room_id)
    assert stored_ranges(made.room_id) == rows
    EventVisibility.objects.filter(kind="withheld").delete()  # as an earlier version stored the room
    assert check_room(made.room_id).of("visibility") == 1
    assert resync_room(made.room_id, "visibility").after.clean
