"""Hostile and broken events: each is refused by name or stored right, alone; and nothing takes more than linear time."""

import json
import time
from dataclasses import replace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from events.errors import Reason
from events.format.parsing import SIZE_LIMIT_BYTES
from events.models import Event, EventJson, Room, RoomSummary
from events.persist import batch as storing
from events.persist.batch import Incoming
from events.persist.room_cache import clear_caches
from events.sending.finish import finish_event
from streams.holds.hold import CHANGE_FACTS
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom, public_room
from tests.support.persisted_rooms import current_state, extremities, incoming, persist, persist_all
from tests.support.queries import sent

pytestmark = pytest.mark.django_db


def changed(event, **parts):
    """The event with other values, its hashes not made anew."""
    return Incoming(json.dumps({**json.loads(event.json), **parts}).encode(), event.room_version)


def in_text(event, old, new):
    """The event's text with something in it replaced."""
    assert old in event.json
    return Incoming(event.json.replace(old, new), event.room_version)


def said(made, **parts):
    """A message whose content is ``parts``."""
    return made.send({"type": "m.room.message", "content": parts})


def reasons(outcome):
    return [refused.error.reason for refused in outcome.refused]


# --- one event alone ----------------------------------------------------------------------------------------------

NUMBERS = {"n": 7}


def bad_events(made):
    """(what is wrong, the event as it comes, the reason)."""
    message = said(made, **NUMBERS)
    state = made.state("a.b", "key", {})
    number = b'"n":7'
    return [
        ("float", in_text(message, number, b'"n":0.5'), Reason.BAD_NUMBER),
        ("float that is whole", in_text(message, number, b'"n":7.0'), Reason.BAD_NUMBER),
        ("exponent", in_text(message, number, b'"n":1e3'), Reason.BAD_NUMBER),
        ("2^53", in_text(message, number, b'"n":9007199254740992'), Reason.BAD_NUMBER),
        ("-2^53", in_text(message, number, b'"n":-9007199254740992'), Reason.BAD_NUMBER),
        ("many digits", in_text(message, number, b'"n":' + b"9" * 5_000), Reason.BAD_NUMBER),
        ("NaN", in_text(message, number, b'"n":NaN'), Reason.BAD_NUMBER),
        ("Infinity", in_text(message, number, b'"n":-Infinity'), Reason.BAD_NUMBER),
        ("duplicate key", in_text(message, number, b'"n":7,"n":7'), Reason.DUPLICATE_KEY),
        ("duplicate key, escaped", in_text(message, number, b'"n":7,"\\u006e":8'), Reason.DUPLICATE_KEY),
        ("lone surrogate", in_text(message, number, b'"n":"\\ud800"'), Reason.BAD_UNICODE),
        ("not UTF-8", in_text(message, number, b'"n":"\xff"'), Reason.BAD_UNICODE),
        ("too deep", in_text(message, number, b'"n":' + b"[" * 1_000 + b"]" * 1_000), Reason.TOO_DEEP),
        ("cut short", Incoming(message.json[:-1], "10"), Reason.NOT_JSON),
        ("empty", Incoming(b"", "10"), Reason.NOT_JSON),
        ("array", Incoming(b"[]", "10"), Reason.NOT_AN_OBJECT),
        ("no type", in_text(message, b'"type"', b'"tipe"'), Reason.MISSING_KEY),
        ("content is text", changed(message, content="x"), Reason.WRONG_TYPE),
        ("wrong ID", Incoming(message.json, "10", event_id="$" + "x" * 43), Reason.WRONG_EVENT_ID),
        ("other depth, same ID", Incoming(changed(message, depth=3).json, "10", message.event_id), Reason.WRONG_EVENT_ID),
        ("10,000 prev events", changed(message, prev_events=[f"${n:043}" for n in range(10_000)]), Reason.TOO_LARGE),
        ("21 prev events", changed(message, prev_events=[f"${n:043}" for n in range(21)]), Reason.BAD_REFERENCE),
        ("11 auth events", changed(message, auth_events=[f"${n:043}" for n in range(11)]), Reason.BAD_REFERENCE),
        ("prev event is no ID", changed(message, prev_events=["x"]), Reason.BAD_REFERENCE),
        ("prev event is a pair", changed(message, prev_events=[["$x", {}]]), Reason.WRONG_TYPE),
        ("1 MiB with what nobody signs", changed(message, unsigned={"x": "y" * 2**20}), Reason.TOO_LARGE),
        ("100 kB", changed(message, content={"body": "x" * 100_000}), Reason.TOO_LARGE),
        ("100 kB of auth events", changed(message, auth_events=[f"${n:043}" for n in range(2_300)]), Reason.TOO_LARGE),
        ("depth 2^63", changed(message, depth=2**63), Reason.BAD_NUMBER),
        ("depth below zero", changed(message, depth=-1), Reason.OUT_OF_RANGE),
        ("depth is text", changed(message, depth="1"), Reason.WRONG_TYPE),
        ("depth is true", changed(message, depth=True), Reason.WRONG_TYPE),
        ("unknown room version", Incoming(message.json, "13"), Reason.UNKNOWN_ROOM_VERSION),
        ("room version of another", Incoming(message.json, "9"), Reason.WRONG_ROOM_VERSION),
        ("NUL in a state key", changed(state, state_key="a\0b"), Reason.NUL_CHARACTER),
        ("NUL in a type", changed(state, type="a\0b"), Reason.NUL_CHARACTER),
        ("NUL in a room ID", changed(message, room_id="!a\0b:c"), Reason.NUL_CHARACTER),
        ("user ID of 1 kB", changed(message, sender="@" + "u" * 1_000 + ":a.test"), Reason.IDENTIFIER_TOO_LONG),
        ("state key of 1 kB", changed(state, state_key="@" + "u" * 1_000 + ":a.test"), Reason.IDENTIFIER_TOO_LONG),
        ("type of 1 kB", changed(state, type="t" * 1_000), Reason.IDENTIFIER_TOO_LONG),
        ("state key of 256 bytes", changed(state, state_key="é" * 128), Reason.IDENTIFIER_TOO_LONG),
        ("prev event of 1 kB", changed(message, prev_events=["$" + "x" * 1_000]), Reason.IDENTIFIER_TOO_LONG),
        ("sender is no user", changed(message, sender="alice"), Reason.BAD_IDENTIFIER),
        ("missing prev event", changed(message, prev_events=["$missing"]), Reason.MISSING_PREV_EVENTS),
        ("no prev events", changed(message, prev_events=[]), Reason.NO_PREV_EVENTS),
        ("other room", changed(message, room_id="!elsewhere:a.test"), Reason.UNKNOWN_ROOM),
    ]  # fmt: skip


def test_each_bad_event_is_refused_by_name_and_the_rest_is_stored():
    made = public_room()
    base = list(made.events)
    bad = bad_events(made)
    fine = said(made, body="still here")
    batch = [*(incoming(event) for event in base), *(event for _, event, _ in bad)]
    batch += [incoming(event) for event in made.events[len(base) :]]
    outcome = persist(batch)
    found = {refused.place: refused.error.reason for refused in outcome.refused}
    assert {what: found.get(len(base) + n) for n, (what, _, _) in enumerate(bad)} == {what: r for what, _, r in bad}
    assert len(outcome.stored) == len(made.events) and extremities(made.room_id) == [fine.event_id]
    for refused in outcome.refused:  # words for people, of bounded length
        assert 10 < len(str(refused.error)) < 400


@pytest.mark.parametrize("number", [10**15, 10**400, 10**4000])
@pytest.mark.parametrize("version", ["1", "5"])
def test_levels_of_any_size_are_refused_alone(version, number):
    """What refuses an event tells the levels; before room version 6 they have no bounds."""
    made = public_room(version)
    for user in (BOB, EVE):
        made.member(user, "join")
    users = {ALICE: 100, EVE: -number, BOB: -number}
    made.state("m.room.power_levels", "", {"users": users, "events": {"m.x": -number}, "ban": -number, "kick": -number})
    own = {"event_id": "$eve:e.test"} if version == "1" else {}
    bad = [made.message(sender=EVE) if version != "1" else made.send({"type": "m.y", "sender": EVE, **own})]
    bad.append(made.member(BOB, "ban", prev=bad[:1], sender=EVE))
    bad.append(made.state("m.room.power_levels", "", {"users": {**users, ALICE: number}}, prev=bad[:1]))
    made.message(prev=bad[:1])
    (outcome,) = persist_all(made.events, 100)
    refused = {stored.event_id for stored in outcome.stored if stored.rejected_reason is not None}
    assert refused == {event.event_id for event in bad} and len(outcome.stored) == len(made.events)


@pytest.mark.parametrize("version", ["1", "5"])
def test_old_versions_store_numbers_as_they_are(version):
    made = public_room(version)
    texts = [b'"n":0.5', b'"n":7.0', b'"n":-0.0', b'"n":9007199254740993']
    events = []
    for number in (0.5, 7.0, -0.0, 2**53 + 1):
        events.append(said(made, n=number))
    outcome = persist([incoming(event) for event in made.events])
    assert outcome.refused == [] and outcome.bad_content_hashes == 0
    for event, text in zip(events, texts, strict=True):
        stored = bytes(EventJson.objects.get(pk=event.event_id).json)
        assert stored == event.json and text in stored


@pytest.mark.parametrize("version", ["1", "10"])
def test_nan_is_no_number_in_any_version(version):
    made = public_room(version)
    message = said(made, **NUMBERS)
    outcome = persist([*(incoming(event) for event in made.events[:-1]), in_text(message, b'"n":7', b'"n":NaN')])
    assert reasons(outcome) == [Reason.BAD_NUMBER]


def test_depth_at_its_ends():
    """2^63 - 1 fits the column; 2^53 and more only rooms with the old rules can have."""
    made = public_room("5")
    deep = made.send({"type": "m.room.message", "depth": 2**63 - 1})
    deeper = changed(deep, depth=2**63)
    zero = made.send({"type": "m.room.message", "depth": 0}, prev=[made.events[3]])
    outcome = persist([*(incoming(event) for event in made.events), deeper])
    assert reasons(outcome) == [Reason.OUT_OF_RANGE]
    depths = dict(Event.objects.values_list("event_id", "topological_ordering"))
    assert depths[deep.event_id] == 2**63 - 1 and depths[zero.event_id] == 0


def test_nul_in_content_is_stored_and_names_nothing():
    made = public_room()
    event = said(made, body="a\0b", **{"m.relates_to": {"event_id": "$a\0b"}})
    member = made.send(
        {
            "type": "m.room.member",
            "state_key": BOB,
            "sender": BOB,
            "content": {"membership": "join", "displayname": "\0"},
        }
    )
    outcome = persist([incoming(event) for event in made.events])
    assert outcome.refused == [] and len(outcome.stored) == 6
    assert bytes(EventJson.objects.get(pk=event.event_id).json) == event.json
    assert Event.objects.get(event_id=event.event_id).relates_to is None
    assert current_state(made.room_id)["m.room.member", BOB] == member.event_id


def test_event_of_exactly_the_largest_size():
    made = public_room()
    empty = len(said(made, body="").json)
    made.events.pop()
    largest = said(made, body="x" * (SIZE_LIMIT_BYTES - empty))
    persist([incoming(event) for event in made.events])
    assert len(largest.json) == SIZE_LIMIT_BYTES and extremities(made.room_id) == [largest.event_id]
    spaced = in_text(said(made, body="y"), b'"body":"y"', b'"body":' + b" " * 100_000 + b'"y"')
    assert persist([spaced]).refused == []  # white space does not count


# --- references ---------------------------------------------------------------------------------------------------


def chosen(made, event_id, prev, auth=None):
    """An event of version 2, where IDs are chosen, so that cycles can be made."""
    parts = {"type": "m.room.message", "event_id": event_id, "prev_events": [[other, {}] for other in prev]}
    if auth is not None:
        parts["auth_events"] = [[other, {}] for other in auth]
    return made.send(parts)


def test_cycles_in_prev_events_are_refused_and_what_stands_on_them():
    made = public_room("2")
    base = made.events[-1].event_id
    cycle = [chosen(made, f"$c{n}:a", [f"$c{(n + 1) % 5}:a", base]) for n in range(5)]
    above = chosen(made, "$above:a", [cycle[0].event_id])
    fine = chosen(made, "$fine:a", [base])
    outcome = persist([incoming(event) for event in made.events])
    assert {made.events[refused.place].event_id: refused.error.reason for refused in outcome.refused} == {
        **dict.fromkeys((event.event_id for event in cycle), Reason.CYCLE),
        above.event_id: Reason.MISSING_PREV_EVENTS,
    }
    assert extremities(made.room_id) == [fine.event_id]


def test_cycles_in_auth_events_are_refused():
    made = public_room("2")
    base = made.events[-1].event_id
    auth = [event.event_id for event in made.events[:3]]
    one = chosen(made, "$one:a", [base], [*auth, "$two:a"])
    two = chosen(made, "$two:a", [base], [*auth, "$one:a"])
    fine = chosen(made, "$fine:a", [base])
    outcome = persist([incoming(event) for event in made.events])
    refused = {made.events[refused.place].event_id for refused in outcome.refused}
    assert refused == {one.event_id, two.event_id} and set(reasons(outcome)) == {Reason.CYCLE}
    assert extremities(made.room_id) == [fine.event_id]


def test_event_that_names_itself():
    made = public_room("2")
    message = said(made, body="x")
    own = changed(message, prev_events=[[message.event_id, {}]])
    auth = changed(message, auth_events=[[message.event_id, {}]])
    outcome = persist([*(incoming(event) for event in made.events[:-1]), own, auth])
    assert reasons(outcome) == [Reason.BAD_REFERENCE] * 2


def test_cycle_that_closes_over_what_is_stored():
    """The stored event came first, as an old one with a gap below; what would fill the gap stands on it, and is refused."""
    made = public_room("2")
    base = made.events[-1].event_id
    persist_all(made.events, 100)
    lower = chosen(made, "$lower:a", ["$upper:a"])
    upper = chosen(made, "$upper:a", ["$lower:a", base])
    assert persist([incoming(lower, backfilled=True)]).refused == []
    assert reasons(persist([incoming(upper, backfilled=True)])) == [Reason.CYCLE]
    fine = made.message(prev=[made.events[3]])
    assert persist([incoming(fine)]).refused == []
    assert extremities(made.room_id) == [fine.event_id]
    assert Event.objects.filter(state_unresolved=True).count() == 1


def test_auth_events_of_another_room_and_other_strange_ones():
    made, other = public_room(), public_room(room_id="!other:a.test")
    persist([incoming(event) for event in (*made.events, *other.events)])
    auth = [event.event_id for event in made.events[:3]]
    rejected = made.send({"type": "m.room.topic", "state_key": "", "sender": BOB})
    persist([incoming(rejected)])
    for named, word in (
        ([other.create.event_id, *auth[1:]], "of another room"),
        ([*auth, made.events[3].event_id], "has no say"),
        ([*auth, rejected.event_id], "has no say"),
        (auth[1:], "create event"),
        ([], "create event"),
    ):
        event = made.send({"type": "m.room.message", "auth_events": named}, prev=[made.events[3]])
        outcome = persist([incoming(event)])
        assert word in outcome.stored[0].rejected_reason, named
    assert persist([incoming(made.message(prev=[made.events[3]]))]).stored[0].rejected_reason is None


@pytest.mark.parametrize("about", [{"backfilled": True}, {"outlier": True}, {}])
def test_an_event_on_very_many_others_is_refused(about):
    """One for each choice of hundreds of forks would have the room's state worked out of hundreds of states each time."""
    made = public_room()
    base = made.events[-1]
    forks = [made.topic(str(n), prev=[base]) for n in range(21)]
    assert persist([incoming(event) for event in made.events]).refused == []
    merge, fine = made.message(prev=forks), made.message(prev=forks[:20])
    assert reasons(persist([incoming(merge, **about)])) == [Reason.BAD_REFERENCE]
    assert persist([incoming(fine, **about)]).stored[0].rejected_reason is None
    known = storing.persist([incoming(merge)], verified=True, history_of="a.test")
    assert known.refused == []  # a server that has it may have taken it before there was a bound


def test_prev_event_of_another_room_is_not_here():
    made, other = public_room(), public_room(room_id="!other:a.test")
    persist([incoming(event) for event in (*made.events, *other.events)])
    outcome = persist([incoming(made.message(prev=[other.events[-1]]))])
    assert reasons(outcome) == [Reason.MISSING_PREV_EVENTS]


def test_second_create_event_is_rejected():
    made = public_room()
    second = made.send({"type": "m.room.create", "state_key": "", "content": {"creator": ALICE, "x": 1}}, prev=[])
    outcome = persist([incoming(event) for event in made.events])
    verdict = {stored.event_id: stored.rejected_reason for stored in outcome.stored}
    assert verdict[second.event_id] is not None and verdict[made.create.event_id] is None
    assert current_state(made.room_id)["m.room.create", ""] == made.create.event_id


# --- time ---------------------------------------------------------------------------------------------------------


def cost(work):
    """(CPU seconds of this process at best, number of queries): of three runs, each rolled back."""
    seconds, queries = [], 0
    for _ in range(3):
        clear_caches()
        with CaptureQueriesContext(connection) as seen:
            start = time.process_time()
            work()
            seconds.append(time.process_time() - start)
        queries = len(sent(seen))
        connection.cursor().execute(f"{CHANGE_FACTS}; TRUNCATE events_room, events_eventedge, events_eventjson, "
            "events_eventauth, events_forwardextremity, events_backwardextremity, events_currentstate, events_currentstatedelta, "
            "events_eventvisibility, state_stategroup, state_stategroupdelta, events_event")  # fmt: skip
    return min(seconds), queries


def assert_linear(make, size):
    """Four times as much takes at most ten times as long (2.5 for each doubling), and about as many queries."""
    small, big = make(size), make(4 * size)
    (little, few), (much, many) = cost(small), cost(big)
    assert much < 10 * little + 0.05, f"{little:.3f} s for {size}, {much:.3f} s for {4 * size}"
    assert many <= few + 8, f"{few} queries for {size}, {many} for {4 * size}"


def persisting(batch):
    return lambda: persist(batch)


@pytest.mark.speed
def test_chain_of_events_takes_linear_time():
    def make(size):
        made = public_room()
        for _ in range(size):
            made.message()
        return persisting([incoming(event) for event in made.events])

    assert_linear(make, 150)


@pytest.mark.speed
def test_many_prev_events_take_linear_time():
    def make(size):
        made = public_room("2")
        base = made.events[-1].event_id
        for number in range(size):
            chosen(made, f"$h{number}:a", [base])
        chosen(made, "$merge:a", [f"$h{number}:a" for number in range(size)])
        return persisting([incoming(event) for event in made.events])

    assert_linear(make, 150)


@pytest.mark.speed
def test_cycle_takes_linear_time():
    def make(size):
        made = public_room("2")
        for number in range(size):
            chosen(made, f"$c{number}:a", [f"$c{(number + 1) % size}:a"])
        return persisting([incoming(event) for event in made.events])

    assert_linear(make, 150)


@pytest.mark.speed
def test_chain_of_refused_events_takes_linear_time():
    def make(size):
        made = public_room()
        persisted = list(made.events)
        first = made.message(prev=["$missing"])
        for _ in range(size):
            first = made.message(prev=[first])
        return persisting([incoming(event) for event in (*persisted, *made.events[len(persisted) :])])

    assert_linear(make, 150)


@pytest.mark.parametrize(
    ("before", "unit", "after"),
    [
        (b'"n":', b"9", b""),
        (b'"n":[', b"1,", b"1]"),
        (b'"n":"', b"\\u0000", b'"'),
        (b'"n":7', b',"n":7', b""),
        (b'"n":', b"[", b""),
        (b'"n":"', b"\\ud800", b'"'),
    ],
    ids=["digits", "list", "escapes", "duplicates", "brackets", "surrogates"],
)
@pytest.mark.speed
def test_text_takes_linear_time(before, unit, after):
    message = MadeRoom().message()

    def make(size):
        text = message.json.replace(b'"body":"x"', before + unit * size + after)
        return persisting([Incoming(text, "10")] * 20)

    assert_linear(make, 8_000)


def test_event_on_a_long_chain_of_soft_failed_ones_costs_no_more():
    made = public_room()
    joined = made.member(BOB, "join")
    ban = made.member(BOB, "ban", sender=ALICE)
    persist_all(made.events, 100)
    chain = [made.message(prev=[joined], sender=BOB)]
    counted = []
    for size in (5, 40):
        while len(chain) < size:
            chain.append(made.message(prev=[chain[-1]], sender=BOB))
        outcome = persist([incoming(event) for event in chain])
        assert all(stored.soft_failed for stored in outcome.stored)
        clear_caches()
        with CaptureQueriesContext(connection) as seen:
            chain.append(made.message(prev=[chain[-1]], sender=BOB))
            persist([incoming(chain[-1])])
        counted.append(len(sent(seen)))
    assert counted[1] <= counted[0]
    merge = made.message(prev=[chain[-1], ban])
    with CaptureQueriesContext(connection) as seen:
        persist([incoming(merge)])
    assert extremities(made.room_id) == [merge.event_id] and len(sent(seen)) < counted[0] + 10


def test_finished_events_are_what_these_tests_change():
    made = public_room()
    again = finish_event(json.loads(made.events[-1].json), "10")
    assert again.event_id == made.events[-1].event_id


# --- copies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["tampered", "outlier", "other version"])
def test_bad_copy_in_a_batch_does_not_hide_the_event(first):
    made = public_room()
    message = said(made, body="real")
    copy = {
        "tampered": in_text(message, b"real", b"fake"),
        "outlier": incoming(message, outlier=True),
        "other version": incoming(message, room_version="9"),
    }[first]
    outcome = persist([copy, *(incoming(event) for event in made.events)])
    assert extremities(made.room_id) == [message.event_id] and outcome.bad_content_hashes == 0
    assert bytes(EventJson.objects.get(pk=message.event_id).json) == message.json


def chosen_id(room_id, version="1", event_id="$chosen:a.test"):
    """A create event whose sender chose an ID that is not theirs alone."""
    made = MadeRoom("3", room_id)
    whole = {**json.loads(made.create.json), "event_id": event_id, "content": {"creator": ALICE}}
    whole["content"]["room_version"] = version
    return incoming(finish_event({key: whole[key] for key in whole if key not in ("hashes", "signatures")}, version))


@pytest.mark.parametrize("versions", [("1", "1"), ("1", "2")])
def test_id_that_two_rooms_claim_is_that_of_the_first(versions):
    one, other = chosen_id("!one:a.test", versions[0]), chosen_id("!other:a.test", versions[1])
    rest = public_room(room_id="!rest:a.test")
    outcome = persist([one, other, *(incoming(event) for event in rest.events)])
    assert reasons(outcome) == [Reason.WRONG_EVENT_ID] and outcome.duplicates == []
    assert len(outcome.stored) == 1 + len(rest.events)
    assert reasons(persist([other])) == [Reason.WRONG_EVENT_ID]
    assert reasons(persist([replace(other, outlier=True)])) == [Reason.WRONG_EVENT_ID]
    assert persist([one]).duplicates == ["$chosen:a.test"]
    rooms = ["!one:a.test", "!rest:a.test"]  # nothing is left of the other
    assert list(Room.objects.order_by("room_id").values_list("room_id", flat=True)) == rooms
    assert list(RoomSummary.objects.order_by("room_id").values_list("room_id", flat=True)) == rooms


def test_outlier_of_another_room_becomes_nothing_here():
    outlier = replace(chosen_id("!one:a.test"), outlier=True)
    assert len(persist([chosen_id("!one:a.test", event_id="$begin:a.test"), outlier]).stored) == 2
    assert reasons(persist([chosen_id("!other:a.test")])) == [Reason.WRONG_EVENT_ID]
    assert Event.objects.get(event_id="$chosen:a.test").room_id == "!one:a.test"


def test_create_event_decides_the_version_of_its_room():
    made = public_room()
    stray = incoming(made.alice, room_version="9", outlier=True)
    outcome = persist([*(incoming(event) for event in made.events), stray])
    assert Room.objects.get().room_version == "10" and reasons(outcome) == [Reason.WRONG_ROOM_VERSION]


def test_nothing_but_a_create_event_begins_a_room():
    made = public_room()
    strange = made.send({"type": "m.room.create", "state_key": "x", "room_id": "!new:a.test"})
    other = made.send({"type": "m.room.create", "room_id": "!new:a.test"}, prev=[])
    persist([incoming(event) for event in made.events[:4]])
    outcome = persist([incoming(strange), incoming(other)])
    assert reasons(outcome) == [Reason.UNKNOWN_ROOM] * 2
    assert list(Room.objects.values_list("room_id", flat=True)) == [made.room_id]
