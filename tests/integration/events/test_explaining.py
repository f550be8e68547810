"""Why a user sees an event, from the tables, against a real server's answers."""

import io
import json

import pytest
from django.core.management import call_command

from events.errors import StateUnresolved, UnknownEvent
from events.models import ErasedUser
from events.visibility.explain import Explanation, explain_visibility
from tests.oracle.answers import parsed
from tests.support.made_rooms import ALICE, BOB, EVE, MadeRoom
from tests.support.room_data import oracle
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db


def explain(user_id, *events):
    """The explanations of events of a made room."""
    return list(explain_visibility(user_id, [event.event_id for event in events]))


@pytest.mark.parametrize("room", ["v6_membership_visibility", "v10_visibility_walk", "v11_redactions", "v10_rejected"])
def test_answers_are_the_real_servers(room):
    """For each user in the way in which the server would read the room for them."""
    events = parsed(room)
    store_room(events)
    compared = 0
    for row in oracle(room, "visibility"):
        if row["kind"] == "user" and row["is_peeking"] == (row["membership_now"] not in ("join", "leave")):
            found = explain(row["user_id"], *events)
            letters = "".join("p" if e.pruned else "1" if e.allowed else "0" for e in found)
            assert letters == row["result"].replace("x", "0"), row["user_id"]
            assert {e.peeking for e in found} == {row["is_peeking"]}
            compared += 1
    assert compared > 5


def test_explanation_tells_what_it_looked_at():
    made = MadeRoom()
    made.state("m.room.history_visibility", "", {"history_visibility": "joined"})
    message = made.message()
    store_room(made.events)
    (mine,), (others,) = explain(ALICE, message), explain(EVE, message)
    assert (mine.allowed, mine.rule, mine.membership, mine.history_visibility) == (True, "joined", "join", "joined")
    assert mine.state_group is not None and mine.reachable and not mine.peeking
    assert (others.allowed, others.rule, others.membership, others.peeking) == (False, "not_visible", None, True)
    assert not others.reachable


def test_after_the_own_leave_nothing_is_reachable():
    made = MadeRoom()
    made.member(BOB, "join")
    leave, later = made.member(BOB, "leave"), made.message()
    store_room(made.events)
    assert [(e.allowed, e.reachable) for e in explain(BOB, leave, later)] == [(True, True), (True, False)]


def test_rejected_outlier_and_soft_failed_events_are_not_seen():
    made = MadeRoom()
    hidden = [
        made.message(prev=[made.alice], rejected_reason="x"),
        made.message(prev=[made.alice], outlier=True),
        made.message(prev=[made.alice], soft_failed=True),
    ]
    store_room(made.events)
    assert [(e.allowed, e.rule) for e in explain(ALICE, *hidden)] == [
        (False, "rejected"), (False, "outlier"), (False, "soft_failed"),
    ]  # fmt: skip


def test_own_invite_is_seen_as_an_outlier():
    made = MadeRoom()
    invite = made.member(BOB, "invite", sender=ALICE, outlier=True)
    store_room(made.events)
    assert explain(BOB, invite)[0].allowed and not explain(EVE, invite)[0].allowed


def test_events_of_erased_users_are_pruned_for_who_was_not_joined():
    made = MadeRoom()
    message = made.message()
    made.member(BOB, "join")
    store_room(made.events)
    ErasedUser.objects.create(user_id=ALICE)
    assert [(e.allowed, e.pruned) for e in (*explain(BOB, message), *explain(ALICE, message))] == [
        (True, True), (True, False),
    ]  # fmt: skip


@pytest.mark.parametrize("sender, rule", [(ALICE, "joined"), (EVE, "redaction_without_effect")])
def test_redaction_without_the_right_to_it_is_not_seen(sender, rule):
    made = MadeRoom()
    target = made.message(sender=BOB)
    redaction = made.redaction(target, sender=sender)
    store_room(made.events)
    assert explain(ALICE, redaction)[0].rule == rule
    assert explain(ALICE, target)[0].redacted_by == (redaction.event_id if sender == ALICE else None)


def test_redaction_of_what_is_not_here_is_not_seen():
    made = MadeRoom()
    elsewhere = MadeRoom(room_id="!other:a.test").message()
    redaction = made.redaction(elsewhere)
    store_room(made.events)
    assert explain(ALICE, redaction)[0].rule == "redaction_without_effect"


def test_what_has_no_answer_is_said_in_its_place():
    made = MadeRoom()
    unresolved = made.message(prev=["$gone"])
    store_room(made.events)
    found = list(explain_visibility(ALICE, ["$nowhere", unresolved.event_id, made.create.event_id]))
    assert [type(answer) for answer in found] == [UnknownEvent, StateUnresolved, Explanation]


def test_command_prints_a_line_each_and_exits_1_for_gaps(monkeypatch):
    made = MadeRoom()
    store_room(made.events)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"$nowhere\n\n{made.alice.event_id}\n"))
    out = io.StringIO()
    with pytest.raises(SystemExit) as end:
        call_command("explain_visibility", ALICE, made.create.event_id, "-", "--json", stdout=out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert end.value.code == 1
    assert lines[1] == {"event_id": "$nowhere", "error": "unknown"}
    assert [line["event_id"] for line in lines] == [made.create.event_id, "$nowhere", made.alice.event_id]
    assert lines[0]["allowed"] is True and lines[0]["pruned"] is False and lines[0]["rule"] == "shared"
