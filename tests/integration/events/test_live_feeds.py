"""Feeds kept by the live pipeline are those of ``runhandlers feeds``, and the two relieve each other."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from django.db import connection, transaction

from events.models import Event, FeedEntry, FeedPosition
from events.sending.send import create_room
from events.sync.feeds import FEEDS, feed_places_since
from pipeline.live import feeds_table
from pipeline.live.feeds_table import FeedsTable, ready_upto
from pipeline.live.ledger import BatchOffsets, ledger_vectors, take_batch
from streams.errors import ReaderFenced, ReaderNameTaken
from streams.follow import Reader
from streams.follow.cursors import read_cursor
from streams.follow.handlers import load_handlers
from streams.models import Reader as ReaderRow
from streams.models import StoredCursor, StreamPosition
from tests.support.syncing import here, talk
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ANN, BOB = "@ann:site", "@bob:site"


@pytest.fixture(autouse=True)
def _server_name(settings):
    load_handlers()
    settings.REPLSITE_SERVER_NAME = "site"


@pytest.fixture
def room():
    made = create_room(ANN)
    made.join(BOB)
    return made


@pytest.fixture
def feeds():
    table = FeedsTable("default")
    with table.held():
        yield table


def begin(table):
    there()
    with connection.cursor() as cursor:
        return table.begin(cursor)


def there():
    """The vector of what is stored, once all that was written is."""
    upto = here().highest
    wait_until(lambda: upto in stored_vector().values())
    return stored_vector()


def stored_vector():
    return dict(StreamPosition.objects.filter(stream="events").values_list("instance_name", "position"))


def batch(table, vector=None):
    """What the query does with a micro-batch that ends at a vector."""
    with transaction.atomic(), connection.cursor() as cursor:
        offsets = BatchOffsets(0, ledger_vectors(cursor, FEEDS), {"events": vector or there()})
        if take_batch(cursor, FEEDS, offsets):
            table.write(cursor, None, offsets)


def catch_up(table):
    with transaction.atomic(), connection.cursor() as cursor:
        return table.catch_up(cursor)


def listed(user, token, room):
    found = feed_places_since(user, [room.room_id], (token, here()), 100, "default")
    return None if found is None else list(found.positions)


def positions(event_ids):
    found = dict(Event.objects.filter(event_id__in=event_ids).values_list("event_id", "stream_ordering"))
    return [found[event_id] for event_id in event_ids]


def entries():
    return list(FeedEntry.objects.order_by("user_id", "stream_ordering").values_list("user_id", "stream_ordering"))


# --- how far ----------------------------------------------------------------------------------------------------------


@dataclass
class At:
    position: int
    state: str = "active"


@pytest.mark.parametrize(
    ("stored", "vector", "upto"),
    [
        ({"a": At(9)}, {"a": 9}, 9),
        ({"a": At(9)}, {"a": 4}, 4),
        ({"a": At(9)}, {}, 0),
        ({"a": At(9), "b": At(5)}, {"a": 9, "b": 5}, 5),  # b may still write 6
        ({"a": At(9), "b": At(5, "retired")}, {"a": 9, "b": 5}, 9),
        ({"a": At(9), "b": At(5, "retired")}, {"a": 9, "b": 3}, 3),
        ({"a": At(9), "b": At(7)}, {"a": 6, "b": 4}, 4),
        ({"a": At(4)}, {"a": 9}, 4),
        ({}, {}, 1),
    ],
)
def test_ready_is_what_is_complete_and_taken_of_every_writer(stored, vector, upto):
    assert ready_upto(stored, vector) == upto


# --- writing ----------------------------------------------------------------------------------------------------------


def test_first_feeds_begin_where_the_stream_is(room, feeds):
    vectors = begin(feeds)
    token = here()
    assert set(vectors["events"].values()) == {token.base} and not entries()
    said = talk(room, 3)
    batch(feeds)
    assert listed(ANN, token, room) == listed(BOB, token, room) == positions(said)
    assert FeedPosition.objects.get().position == StoredCursor.objects.get(reader=FEEDS).base == here().base
    assert StoredCursor.objects.get(reader=FEEDS).facts_handled == 3


def test_a_batch_is_listed_up_to_where_it_goes(room, feeds):
    begin(feeds)
    said = positions(talk(room, 4))
    batch(feeds, dict.fromkeys(there(), said[1]))
    assert {position for _, position in entries()} == set(said[:2])
    batch(feeds)
    assert {position for _, position in entries()} == set(said)


def test_stretches_are_short_however_long_a_batch_is(room, feeds, monkeypatch):
    begin(feeds)
    token = here()
    said = talk(room, 7)
    sizes = []
    monkeypatch.setattr(feeds_table, "_STRETCH_EVENTS", 3)
    write = feeds_table.write_feeds
    monkeypatch.setattr(feeds_table, "write_feeds", lambda *given: sizes.append(given[1]) or write(*given))
    batch(feeds)
    assert len(sizes) == 3 and sizes[-1].upto == here().base
    assert listed(ANN, token, room) == positions(said)


def test_what_waited_for_a_writer_is_listed_once_it_has_let_go(room, feeds):
    there()
    idle = StreamPosition.objects.create(
        stream="events", instance_name="idle", position=here().base, last_write_position=here().base
    )
    begin(feeds)
    said = talk(room, 2)
    batch(feeds)
    assert not entries() and catch_up(feeds)  # nothing is complete beyond the idle one
    idle.state = "retired"
    idle.save()
    assert catch_up(feeds)
    assert {position for _, position in entries()} == set(positions(said))


def test_a_batch_that_fails_moves_nothing(room, feeds, monkeypatch):
    begin(feeds)
    talk(room, 2)
    before = here()

    def fails(*_):
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(feeds_table, "move_cursor", fails)
        with pytest.raises(RuntimeError):
            batch(feeds)
    assert not entries() and not FeedPosition.objects.exists()
    batch(feeds)
    assert FeedPosition.objects.get().position == before.base


# --- one after the other ----------------------------------------------------------------------------------------------


def test_pipeline_and_handlers_relieve_each_other(room):
    Reader(FEEDS).catch_up()
    token = here()
    said = []
    for _ in range(2):
        said += talk(room, 2)
        table = FeedsTable("default")
        with table.held():
            begin(table)
            said += talk(room, 1)
            batch(table)
        said += talk(room, 2)
        assert Reader(FEEDS).catch_up() == 2
    assert listed(ANN, token, room) == listed(BOB, token, room) == positions(said)


def test_only_one_of_the_two_at_a_time(room, feeds):
    with pytest.raises(ReaderNameTaken, match="feeds"):
        Reader(FEEDS).catch_up()
    with pytest.raises(ReaderNameTaken), FeedsTable("default").held():
        pass


def test_who_lost_the_name_writes_nothing(room, feeds):
    begin(feeds)
    talk(room, 1)
    StoredCursor.objects.update(lease=99)
    with pytest.raises(ReaderFenced):
        batch(feeds)
    assert not entries()


def shown():
    return ReaderRow.objects.filter(name=FEEDS).first() or ReaderRow()


def test_its_place_shows_on_the_live_page(room, feeds):
    begin(feeds)
    talk(room, 1)
    batch(feeds)
    at = here().base
    wait_until(lambda: at in shown().positions.get("events", {}).values())
    assert shown().closed_at is None


def test_a_restored_database_is_gone_on_with(room, feeds):
    begin(feeds)
    StoredCursor.objects.update(epoch="before")
    begin(feeds)
    with connection.cursor() as cursor:
        assert read_cursor(cursor, FEEDS, "events")[1] != "before"
