"""The tables of events and state: what they refuse, what they keep exactly, how they are indexed."""

import pytest
from django.apps import apps
from django.db import IntegrityError, connection
from django.db.models import QuerySet

from events.models import BackwardExtremity, Event, EventEdge, EventJson, EventVisibility
from state.models import StateGroup, StateGroupDelta

pytestmark = pytest.mark.django_db


def event(position, event_id, **more):
    values = {"room_id": "!r:a", "type": "m.x", "sender": "@u:a", "topological_ordering": 1, "origin_server_ts": 1}
    return Event(stream_ordering=position, event_id=event_id, instance_name="w", **{**values, **more})


def group(number, **more):
    values = {"room_id": "!r:a", "chain": number, "hops": 0, "keys": 1, "rows_to_read": 1}
    return StateGroup(id=number, **{**values, **more})


def refused(*rows):
    with pytest.raises(IntegrityError):
        QuerySet(type(rows[0])).bulk_create(rows)


def test_event_id_is_unique():
    refused(event(2, "$a"), event(3, "$a"))


def test_position_zero_is_refused():
    refused(event(0, "$a"))


def test_backfilled_events_have_negative_positions():
    Event.objects.writable().bulk_create([event(-5, "$old"), event(2, "$new")])
    assert list(Event.objects.order_by("pk").values_list("event_id", flat=True)) == ["$old", "$new"]


@pytest.mark.parametrize("text", [b'{"a":"\\u0000"}', b'{ "b" : 1,"a":2 }\t', "é".encode()])
def test_json_is_kept_byte_for_byte(text):
    EventJson.objects.create(event_id="$a", room_version="10", json=text)
    assert bytes(EventJson.objects.get(pk="$a").json) == text


def test_identifiers_are_ordered_by_code_point():
    ids = ["$B", "$a", "$é", "$\uffff", "$\U00010000"]
    Event.objects.writable().bulk_create([event(number + 2, event_id) for number, event_id in enumerate(reversed(ids))])
    assert list(Event.objects.order_by("event_id").values_list("event_id", flat=True)) == ids


def test_edge_is_stored_once():
    refused(EventEdge(event_id="$a", prev_event_id="$b"), EventEdge(event_id="$a", prev_event_id="$b"))


def test_same_gap_may_lie_in_two_rooms_but_once_in_each():
    BackwardExtremity.objects.bulk_create([BackwardExtremity(room_id=room, event_id="$g") for room in ("!a", "!b")])
    refused(BackwardExtremity(room_id="!a", event_id="$g"))


def test_delta_may_say_that_a_key_was_removed():
    StateGroupDelta.objects.create(chain=1, state_group=1, type="m.x", state_key="", event_id=None)
    assert StateGroupDelta.objects.get().event_id is None


@pytest.mark.parametrize("wrong", [{"prev_group": 5}, {"prev_group": 6}, {"chain": 6}])
def test_group_builds_on_older_ones_only(wrong):
    refused(group(5, **wrong))


def test_visibility_range_must_ascend():
    refused(EventVisibility(room_id="!r", kind="joined", user_id="@u", first=5, last=4))


def test_longest_identifiers_fit_into_every_index():
    long = "x" * 255
    Event.objects.writable().bulk_create(
        [event(2, "$" + long[1:], room_id=long, type=long, state_key=long, sender=long, redacts=long)]
    )
    StateGroupDelta.objects.create(chain=1, state_group=1, type=long, state_key=long, event_id=long)
    assert Event.objects.get().state_key == long


def test_no_identifier_has_a_second_index_for_like():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexname FROM pg_indexes WHERE indexname LIKE '%\\_like' AND tablename ~ '^(events|state)_'"
        )
        assert cursor.fetchall() == []


@pytest.mark.parametrize("sequence", ["events_event_stream_seq", "events_event_backfill_seq"])
def test_first_id_of_a_sequence_was_taken_by_the_migration(sequence):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sequence_last_value(%s::regclass) IS NOT NULL", [sequence])
        assert cursor.fetchone() == (True,)


@pytest.mark.parametrize(
    "model", [*apps.get_app_config("events").get_models(), *apps.get_app_config("state").get_models()]
)
def test_table_is_named_for_its_app_and_model(model):
    assert model._meta.db_table == f"{model._meta.app_label}_{model._meta.model_name}"
    assert not model.__doc__.startswith(f"{model.__name__}("), "Django wrote this docstring"
