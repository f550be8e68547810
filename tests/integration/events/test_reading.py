"""State at an event and timelines, as functions and as commands."""

import io
import json

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from events.errors import BadToken, StateUnresolved, UnknownEvent, UnknownRoom
from events.reading.timeline import state_at, timeline
from tests.oracle.answers import parsed
from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.room_data import oracle
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db


@pytest.fixture
def made():
    return MadeRoom()


def run(*arguments):
    """(lines, exit status) of a command."""
    out = io.StringIO()
    try:
        call_command(*arguments, stdout=out)
    except SystemExit as end:
        return [json.loads(line) for line in out.getvalue().splitlines()], end.code
    return [json.loads(line) for line in out.getvalue().splitlines()], 0


def test_state_event_changes_the_state_after_it_not_before(made):
    topic = made.topic("x")
    store_room(made.events)
    found = state_at(topic.event_id)
    assert found.before == {("m.room.create", ""): made.create.event_id, ("m.room.member", ALICE): made.alice.event_id}
    assert found.after == {**found.before, ("m.room.topic", ""): topic.event_id}


def test_create_event_begins_with_nothing(made):
    store_room(made.events)
    found = state_at(made.create.event_id)
    assert (found.before, found.after) == ({}, {("m.room.create", ""): made.create.event_id})


def test_message_and_rejected_event_change_nothing(made):
    message, rejected = made.message(), made.topic("no", rejected_reason="auth")
    store_room(made.events)
    for event in (message, rejected):
        found = state_at(event.event_id)
        assert found.before == found.after == state_at(made.alice.event_id).after


def test_state_event_above_a_fork_stands_on_the_resolved_state(made):
    made.state("m.room.power_levels", "", {"users": {ALICE: 100}})
    one = made.topic("1", prev=[made.events[-1]])
    other = made.state("m.room.name", "", {"name": "x"}, prev=[made.events[-2]])
    above = made.topic("2", prev=[one, other])
    store_room(made.events)
    found = state_at(above.event_id)
    assert found.before == {**state_at(one.event_id).after, ("m.room.name", ""): other.event_id}
    assert found.after == {**found.before, ("m.room.topic", ""): above.event_id}


def test_outlier_has_no_state(made):
    outlier = made.message(outlier=True)
    store_room(made.events)
    assert (state_at(outlier.event_id).before, state_at(outlier.event_id).after) == (None, None)


def test_state_that_is_not_known_is_an_error(made):
    above = made.message(prev=["$gone"])
    store_room(made.events)
    with pytest.raises(StateUnresolved):
        state_at(above.event_id)
    with pytest.raises(UnknownEvent):
        state_at("$nowhere")


def test_state_command_answers_in_the_order_asked_and_exits_1_for_gaps(made):
    above = made.message(prev=["$gone"])
    store_room(made.events)
    lines, status = run("state_at", above.event_id, "$nowhere", made.create.event_id, "--json")
    assert status == 1
    assert lines[0] == {"event_id": above.event_id, "error": "unresolved"}
    assert lines[1] == {"event_id": "$nowhere", "error": "unknown"}
    assert lines[2]["after"] == {"m.room.create\0": made.create.event_id}


def test_state_command_reads_ids_from_standard_input(made, monkeypatch):
    store_room(made.events)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{made.alice.event_id}\n\n{made.create.event_id}\n"))
    lines, status = run("state_at", "-", "--json")
    assert status == 0
    assert [line["event_id"] for line in lines] == [made.alice.event_id, made.create.event_id]


def test_timeline_is_newest_first_and_shows_accepted_events_only(made):
    made.message(soft_failed=True)
    made.message(rejected_reason="x")
    made.message(outlier=True)
    late = made.message(prev=[made.create])
    top = made.message(prev=[made.alice])
    store_room(made.events)
    found = timeline(made.room_id)
    assert [entry.event_id for entry in found] == [event.event_id for event in (top, late, made.alice, made.create)]


def test_pages_join_without_gap_or_repetition(made):
    for _ in range(10):
        made.message(prev=[made.alice])
    store_room(made.events, first_position=-6)
    whole, token, pages = timeline(made.room_id), None, []
    while page := timeline(made.room_id, 3, token):
        pages += page
        token = page[-1].token
    assert pages == whole and len(whole) == 12
    assert {entry.stream_ordering < 0 for entry in whole} == {True, False}


@pytest.mark.parametrize("room", ["v9_restricted", "v10_rejected", "v10_gap", "v12_power_fork"])
def test_real_servers_pages_are_in_the_order_of_the_timeline(room):
    events = parsed(room)
    store_room(events)
    place = {entry.event_id: n for n, entry in enumerate(timeline(events[-1].room_id, 1000))}
    walks = [row for row in oracle(room, "pagination") if row["kind"] == "messages" and row["dir"] == "b"]
    assert walks
    for walk in walks:
        seen = [place[event_id] for page in walk["pages"] for event_id in page.get("chunk", ())]
        assert seen == sorted(seen)


@pytest.mark.parametrize("room", ["v9_restricted", "v10_rejected"])
def test_every_known_state_of_a_real_room_reads_back_as_the_real_servers(room):
    result = store_room(parsed(room))
    rows = oracle(room, "state_groups")
    groups, states = {row["state_group"]: row for row in rows if row["kind"] == "group"}, {None: {}}
    for number in sorted(groups):
        delta = {(event_type, key): event_id for event_type, key, event_id in groups[number]["delta"]}
        states[number] = {**states[groups[number]["prev_group"]], **delta}
    theirs = {row["event_id"]: row["state_group"] for row in rows if row["kind"] == "event"}
    for event_id, _ in result.event_groups:
        assert state_at(event_id).after == states[theirs[event_id]]


@pytest.mark.parametrize(
    "token", ["", "5", "s5", "t5", "t5-", "t-5-3", "t5-3-1", "t5--", "t" + "9" * 19 + "-1", "t5 -3"]
)
def test_unreadable_token_is_refused(made, token):
    store_room(made.events)
    with pytest.raises(BadToken):
        timeline(made.room_id, before=token)


@pytest.mark.parametrize("token", [5, True, b"t5-3", [], "t" * 1_000_000])
def test_what_is_no_text_is_no_token_and_errors_stay_short(made, token):
    store_room(made.events)
    with pytest.raises(BadToken) as caught:
        timeline(made.room_id, before=token)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("room_id", ["!nowhere:a", "!\0:a", "!\ud800:a", "!" + "x" * 1_000_000])
def test_unknown_room_is_an_error(room_id):
    with pytest.raises(UnknownRoom) as caught:
        timeline(room_id)
    assert len(str(caught.value)) < 500


def test_limits_beyond_all_numbers_are_lowered(made):
    store_room(made.events)
    assert len(timeline(made.room_id, 10**30)) == len(made.events)


def test_timeline_command_prints_the_contract_and_its_tokens_work(made):
    store_room(made.events)
    lines, status = run("timeline", made.room_id, "--limit", "1", "--json")
    assert (status, set(lines[0])) == (0, {"event_id", "token", "stream_ordering", "topological_ordering"})
    below, _ = run("timeline", made.room_id, "--before", lines[0]["token"], "--json")
    assert [line["event_id"] for line in below] == [made.create.event_id]


@pytest.mark.parametrize(
    "arguments, status", [(("--before", "x"), 2), (("--limit", "0"), 2), ((), 1)], ids=["token", "limit", "room"]
)
def test_timeline_command_says_what_is_wrong(arguments, status):
    with pytest.raises(CommandError) as caught:
        call_command("timeline", "!nowhere:a", *arguments)
    assert caught.value.returncode == status


@pytest.mark.usefixtures("new_tables")
def test_timeline_is_one_index_range():
    made = MadeRoom()
    store_room(made.events)
    with connection.cursor() as cursor:
        for other_way in ("seqscan", "bitmapscan", "sort"):  # in a table of few rows all ways cost the same
            cursor.execute(f"SET LOCAL enable_{other_way} = off")
        cursor.execute(
            "EXPLAIN SELECT event_id FROM events_event WHERE room_id = %s AND (topological_ordering, stream_ordering)"
            " < (9, 9) AND NOT outlier ORDER BY topological_ordering DESC, stream_ordering DESC LIMIT 5",
            [made.room_id],
        )
        plan = "\n".join(line for (line,) in cursor)
    assert "Index Scan Backward using events_event_timeline" in plan and "Sort" not in plan
