"""The reader ``feeds``: its lists and its cursor move together, and it goes on where it was."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from events.models import Event, Feed, FeedEntry, FeedPosition
from events.sending.send import create_room
from events.sync.events_since import events_since
from events.sync.feeds import FEEDS, feed_places_since
from pipeline import handlers
from pipeline.feeds.write import write_feeds
from streams.errors import HandlerFailed
from streams.follow import Reader, resync_reader
from streams.models.readers import StoredCursor
from tests.support.syncing import here, ids, talk

pytestmark = pytest.mark.django_db(transaction=True)

ANN, BOB = "@ann:site", "@bob:site"


@pytest.fixture(autouse=True)
def _server_name(settings):
    settings.REPLSITE_SERVER_NAME = "site"


def catch_up():
    """What the reader finds; its first run begins where the stream is."""
    return Reader(FEEDS).catch_up()


def positions(event_ids):
    found = dict(Event.objects.filter(event_id__in=event_ids).values_list("event_id", "stream_ordering"))
    return [found[event_id] for event_id in event_ids]


def listed(user, token, room):
    found = feed_places_since(user, [room.room_id], (token, here()), 100, "default")
    return None if found is None else list(found.positions)


def test_reader_lists_what_came_since_it_was_first_run(monkeypatch):
    room = create_room(ANN)
    room.join(BOB)
    assert catch_up() == 0
    token = here()
    said = talk(room, 3)
    assert catch_up() == 3
    said += talk(room, 2)
    assert (catch_up(), catch_up()) == (2, 0)
    assert listed(BOB, token, room) == positions(said)
    assert FeedPosition.objects.get().position == StoredCursor.objects.get(reader=FEEDS).base
    monkeypatch.setattr("events.sync.events_since.ROOMS_WORTH_A_FEED", 1)
    assert ids(events_since(BOB, token, now=here()).events) == said


def test_a_failure_writes_neither_lists_nor_cursor(monkeypatch):
    room = create_room(ANN)
    catch_up()
    before = StoredCursor.objects.get(reader=FEEDS).base
    said = talk(room, 3)

    def writes_and_fails(*arguments):
        write_feeds(*arguments)
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(handlers, "write_feeds", writes_and_fails)
    with pytest.raises(HandlerFailed, match="the disk is full"):
        catch_up()
    assert not FeedEntry.objects.exists()
    assert StoredCursor.objects.get(reader=FEEDS).base == before
    monkeypatch.undo()
    assert catch_up() == len(said)


def test_feeds_begin_anew_behind_what_an_operator_passed_over():
    room = create_room(ANN)
    catch_up()
    token = here()
    talk(room, 2)
    catch_up()
    talk(room, 2)
    resync_reader(FEEDS)
    said = talk(room, 1)
    catch_up()
    assert listed(ANN, token, room) is None
    assert list(FeedEntry.objects.values_list("stream_ordering", flat=True)) == positions(said)


def test_limit_is_a_setting(settings):
    room = create_room(ANN)
    catch_up()
    settings.REPLSITE_FEED_ENTRIES = 5
    talk(room, 12)
    call_command("runhandlers", FEEDS, once=True)
    assert Feed.objects.get(user_id=ANN).entries <= 5
