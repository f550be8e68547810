"""Answers with a feed are those without, whatever became of rooms and feeds; a feed is never the truth."""

from __future__ import annotations

import contextlib
import io
import json
import random

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from events.errors import EventNotAllowed
from events.models import CurrentStateDelta, Event, Feed, FeedEntry, FeedPosition, IgnoredUser
from events.persist.batch import Incoming
from events.sending.send import NewEvent, RoomSetup, create_room
from events.sync import events_since as module
from events.sync import feeds
from events.sync.events_since import events_since
from events.sync.feeds import feed_places_since
from pipeline.feeds.write import StreamRange, Written, drop_feeds, write_feeds
from streams.core.tokens import VectorToken
from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.persisted_rooms import persist
from tests.support.syncing import here, ids, talk

pytestmark = pytest.mark.django_db

ANN, BOB, EVE = "@ann:site", "@bob:site", "@eve:else"
TEXT = "m.room.message"
MANY = 1_000
"""Entries that no feed of a test has."""


@pytest.fixture(autouse=True)
def _feeds_for_few_rooms(monkeypatch):
    monkeypatch.setattr(module, "ROOMS_WORTH_A_FEED", 1)


def write(upto=None, low=None, limit=MANY):
    """Feeds up to a position, from where they are."""
    if low is None:
        low = FeedPosition.objects.values_list("position", flat=True).first() or 1
    with connection.cursor() as cursor:
        return write_feeds(cursor, StreamRange(low, upto or here().base), "site", limit)


def listed(user, token, rooms, now=None, limit=100):
    """Positions that the feed tells of these rooms."""
    found = feed_places_since(user, [room.room_id for room in rooms], (token, now or here()), limit, "default")
    return None if found is None else list(found.positions)


def positions(*event_ids):
    found = dict(Event.objects.filter(event_id__in=event_ids).values_list("event_id", "stream_ordering"))
    return [found[event_id] for event_id in event_ids]


def answer(user, since, monkeypatch, **arguments):
    """The answer with feeds, after it was seen to be the one without."""
    found = events_since(user, since, **arguments)
    with monkeypatch.context() as patched:
        patched.setattr(module, "feed_places_since", lambda *_: None)
        assert events_since(user, since, **arguments) == found
    return found


@pytest.fixture
def room():
    made = create_room(ANN)
    made.join(BOB)
    return made


# --- writing ----------------------------------------------------------------------------------------------------------


def test_events_are_listed_for_the_joined_users_of_this_server(room):
    room.join(EVE)
    token = here()
    said = talk(room, 2)
    outcome = write(low=token.base)
    assert outcome == Written(4, 0, True)
    assert listed(ANN, token, [room]) == listed(BOB, token, [room]) == positions(*said)
    assert listed(EVE, token, [room]) is None
    assert set(Feed.objects.values_list("user_id", "complete_from", "entries")) == {
        (ANN, token.base, 2),
        (BOB, token.base, 2),
    }


def test_a_stretch_that_comes_twice_is_written_once(room):
    token = here()
    talk(room, 2)
    write(low=token.base)
    talk(room, 1)
    assert write(low=token.base) == Written(2, 0, False)  # overlapping
    assert write(low=token.base) == Written()
    assert Feed.objects.get(user_id=BOB).entries == FeedEntry.objects.filter(user_id=BOB).count() == 3


def test_a_stretch_that_leaves_out_events_begins_all_feeds_anew(room):
    token = here()
    talk(room, 2)
    write(low=token.base)
    talk(room, 1)
    gap = here()
    said = talk(room, 1)
    assert write(low=gap.base).began_anew
    assert listed(BOB, token, [room]) is None
    assert listed(BOB, gap, [room]) == positions(*said)


def test_positions_without_events_are_no_gap(room):
    token = here()
    said = talk(room, 1)
    write(low=token.base)
    assert not write(low=here().base + 50, upto=here().base + 60).began_anew
    assert listed(BOB, token, [room]) == positions(*said)


def test_a_long_feed_is_cut_and_marked(room):
    token = here()
    said = talk(room, 20)
    assert write(low=token.base, limit=10).cut == 2
    kept = positions(*said[-8:])
    assert list(FeedEntry.objects.filter(user_id=BOB).values_list("stream_ordering", flat=True).order_by("pk")) == kept
    feed = Feed.objects.get(user_id=BOB)
    assert (feed.entries, feed.complete_from) == (8, positions(said[-9])[0])
    assert listed(BOB, token, [room]) is None
    assert listed(BOB, VectorToken(feed.complete_from), [room]) == kept


def test_no_feed_is_ever_longer_than_the_limit(room):
    for _ in range(12):
        talk(room, 3)
        write(limit=10)
        assert {feed.entries <= 10 for feed in Feed.objects.all()} == {True}
        for feed in Feed.objects.all():
            assert FeedEntry.objects.filter(user_id=feed.user_id).count() == feed.entries


@pytest.mark.usefixtures("new_tables")
def test_a_cut_does_not_read_what_earlier_ones_deleted(room):
    read = []

    def explained(execute, sql, params, many, context):
        if not sql.lstrip().startswith("WITH cut"):
            return execute(sql, params, many, context)
        with connection.connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
            ((plan,),) = cursor.fetchall()
        read.append(
            sum(count for count in entries_read((plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"]))
        )
        return None

    token = here()
    talk(room, 60)
    upto = here().base
    with connection.execute_wrapper(explained):
        for low in range(token.base, upto, 2):
            write(low=low, upto=min(low + 2, upto), limit=5)
    assert len(read) > 20
    assert max(read[-5:]) <= max(read[:5])


def entries_read(plan):
    """The rows of the feeds' table that each scan of a plan has found, dead ones in its index included."""
    if plan.get("Index Name") == "events_feedentry_pkey":
        yield plan["Actual Rows"] * plan["Actual Loops"]
    for below in plan.get("Plans", ()):
        yield from entries_read(below)


def test_memberships_are_listed_for_those_whom_they_concern(room):
    other = create_room(ANN, setup=RoomSetup(join_rule="invite"))
    token = here()
    invite, kick = other.invite(ANN, BOB), room.kick(ANN, BOB)
    write(low=token.base)
    assert listed(BOB, token, [room, other]) == positions(invite.event_id, kick.event_id)


def test_who_left_before_the_feed_was_written_has_what_came_before(room):
    token = here()
    said = talk(room, 2)
    seen = here()
    room.leave(BOB)
    write(low=token.base)
    assert listed(BOB, token, [room], seen) == positions(*said)


def test_an_invite_from_elsewhere_is_listed():
    token = here()
    made = MadeRoom(room_id="!elsewhere:b.test", ruled=True)
    invite = made.member(BOB, "invite", sender=ALICE)
    persist([Incoming(invite.json, room_version=made.version, event_id=invite.event_id, outlier=True)])
    write(low=token.base)
    assert FeedEntry.objects.get(user_id=BOB).room_id == made.room_id


def test_backfilled_events_are_never_new(room):
    first = Event.objects.get(room_id=room.room_id, type="m.room.create")
    token = here()
    talk(room, 1)
    write(low=token.base)
    assert FeedEntry.objects.filter(stream_ordering__lte=0).count() == 0
    assert first.stream_ordering > 0


def test_few_statements_however_many_events_and_users(room):
    token = here()
    talk(room, 30)
    with CaptureQueriesContext(connection) as queries:
        write(low=token.base)
    assert len(queries) <= 8


# --- reading ----------------------------------------------------------------------------------------------------------


def test_tail_beyond_the_feed_is_read_from_the_stream(room, monkeypatch):
    other = create_room(EVE)
    token = here()
    said = talk(room, 2)
    write(low=token.base)
    said += talk(room, 2)
    talk(other, 1, EVE)
    assert listed(BOB, token, [room]) == positions(*said)
    assert ids(answer(BOB, token, monkeypatch, now=here()).events) == said
    monkeypatch.setattr(feeds, "LONGEST_TAIL", 2)
    assert listed(BOB, token, [room]) is None
    assert ids(answer(BOB, token, monkeypatch, now=here()).events) == said


def test_a_feed_ahead_of_now_tells_nothing_beyond_it(room, monkeypatch):
    token = here()
    said = talk(room, 2)
    now = here()
    talk(room, 2)
    room.leave(BOB)
    write(low=token.base)
    assert ids(answer(BOB, token, monkeypatch, now=now).events) == said


def test_first_places_that_show_nothing_do_not_let_later_rooms_come_before_the_rest(room, monkeypatch):
    room.join(EVE)
    IgnoredUser.objects.create(user_id=BOB, ignored_user_id=EVE)
    other = create_room(ANN)
    token = here()
    talk(room, 40, EVE)
    said = talk(room, 1)
    later = [other.join(BOB).event_id, *talk(other, 3)]
    write(low=token.base)
    assert ids(answer(BOB, token, monkeypatch, now=here(), limit=2).events) == [*said, *later][:2]
    assert ids(answer(BOB, token, monkeypatch, now=here()).events)[-4:] == later


def test_no_feed_and_a_token_from_before_it(room, monkeypatch):
    token = here()
    said = talk(room, 2)
    assert ids(answer(BOB, token, monkeypatch, now=here()).events) == said
    write(low=here().base - 1)
    assert ids(answer(BOB, token, monkeypatch, now=here()).events) == said


def test_dropped_feeds_change_no_answer(room, monkeypatch):
    token = here()
    said = talk(room, 2)
    write(low=token.base)
    with connection.cursor() as cursor:
        drop_feeds(cursor)
    assert not (Feed.objects.exists() or FeedEntry.objects.exists() or FeedPosition.objects.exists())
    assert ids(answer(BOB, token, monkeypatch, now=here()).events) == said
    write(low=here().base)
    assert ids(answer(BOB, token, monkeypatch, now=here()).events) == said


def test_entries_of_other_rooms_between_take_few_queries(room):
    other = create_room(ANN)
    other.join(BOB)
    token = here()
    talk(other, 300)
    said = talk(room, 2)
    write(low=token.base)
    now, wanted = here(), positions(*said)
    assert listed(BOB, token, [room], now, limit=50) == wanted  # and its statements are prepared
    with CaptureQueriesContext(connection) as queries:
        assert listed(BOB, token, [room], now, limit=50) == wanted
    assert len(queries) <= 4


def test_what_is_no_longer_there_is_not_told(room, monkeypatch):
    token = here()
    said = talk(room, 3)
    write(low=token.base)
    Event.objects.writable().filter(event_id=said[1])._raw_delete("default")
    assert ids(answer(BOB, token, monkeypatch, now=here()).events) == [said[0], said[2]]


def test_feed_reads_no_room_in_which_nothing_happened(room, monkeypatch):
    rooms = [create_room(BOB) for _ in range(5)]
    token = here()
    talk(room, 1)
    write(low=token.base)
    looked_at = []
    plain = module.Windows

    def windows(user_id, found, *rest):
        looked_at.append([window.room_id for window in found])
        return plain(user_id, found, *rest)

    monkeypatch.setattr(module, "Windows", windows)
    events_since(BOB, token, now=here())
    assert looked_at == [[room.room_id]]
    assert len(rooms) == 5


# --- random histories -------------------------------------------------------------------------------------------------


class History:
    """Rooms in which users come and go, with feeds that are written, cut, dropped and skipped as it happens."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        rules = [("public", "shared"), ("public", "joined"), ("knock", "invited"), ("public", "world_readable")]
        self.rooms = [create_room(ANN, setup=RoomSetup(join_rule=j, history_visibility=v)) for j, v in rules]
        self.tokens = [here()]
        self.said = {room.room_id: [] for room in self.rooms}

    def step(self):
        move = self.dice.choice([self.talk] * 6 + [self.change] * 6 + [self.fork] * 2 + [self.feed] * 5)
        with contextlib.suppress(EventNotAllowed):  # the dice do not know the rules
            move(self.dice.choice(self.rooms))
        if self.dice.random() < 0.4:  # another process wrote them
            for model in (Event, CurrentStateDelta):
                model.objects.writable().filter(stream_ordering__gt=self.tokens[-1].base).update(instance_name="other")
        self.tokens.append(here())

    def talk(self, room):
        sender = self.dice.choice([ANN, BOB, EVE])
        self.said[room.room_id] += room.add([NewEvent(sender, TEXT, {}) for _ in range(self.dice.randint(1, 4))])

    def change(self, room):
        user = self.dice.choice([BOB, BOB, EVE])
        how = self.dice.choice(["join", "join", "join", "leave", "invite", "kick", "ban", "knock", "setting"])
        if how in ("join", "leave", "knock"):
            getattr(room, how)(user)
        elif how == "setting":
            value = self.dice.choice(["shared", "joined", "invited", "world_readable"])
            room.set_state(ANN, "m.room.history_visibility", {"history_visibility": value})
        else:
            getattr(room, how)(ANN, user)

    def fork(self, room):
        if self.said[room.room_id]:
            base = self.dice.choice(self.said[room.room_id])
            sender = self.dice.choice([ANN, BOB])
            room.on(base).send(sender, TEXT, {})

    def feed(self, _):
        at = here().base
        match self.dice.choice(["write"] * 6 + ["behind"] * 3 + ["cut", "skip", "drop"]):
            case "write":
                write()
            case "behind":
                write(upto=self.dice.choice(self.tokens).base)
            case "cut":
                write(limit=self.dice.randint(1, 20))
            case "skip":
                write(low=at - 1, upto=at)
            case "drop":
                with connection.cursor() as cursor:
                    drop_feeds(cursor)

    def span(self):
        """Two tokens, perhaps vectors."""
        low, high = sorted(self.dice.choices(self.tokens, k=2), key=lambda token: token.base)
        if self.dice.random() < 0.4:
            low = VectorToken.of(self.dice.choice(self.tokens).base, {"other": low.base})
        if self.dice.random() < 0.4:
            high = VectorToken.of(high.base, {"other": self.dice.choice(self.tokens).base})
        return low, high


@pytest.mark.parametrize("seed", range(8))
def test_random_histories_read_the_same_with_and_without_feeds(seed, monkeypatch):
    history = History(seed)
    with_feed = 0
    plain = module.feed_places_since

    def counted(*arguments):
        nonlocal with_feed
        found = plain(*arguments)
        with_feed += bool(found)
        return found

    monkeypatch.setattr(module, "feed_places_since", counted)
    for _ in range(60):
        history.step()
        for user in (ANN, BOB):
            low, high = history.span()
            answer(user, low, monkeypatch, now=high, limit=history.dice.choice([1, 3, 100]))
    assert with_feed >= 10  # or nothing was tested


# --- purge feeds ------------------------------------------------------------------------------------------------------


def purge(**options):
    out = io.StringIO()
    call_command("purge", "feeds", stdout=out, **options)
    return out.getvalue().strip()


def test_purge_feeds_of_one_user_and_of_all(room, monkeypatch):
    token = here()
    said = talk(room, 2)
    write(low=token.base)
    assert purge(dry_run=True) == "2 feeds with 4 entries would be deleted"
    assert purge(user=BOB) == "feeds: 1 -> 0, entries: 2 -> 0"
    assert (listed(BOB, token, [room]), listed(ANN, token, [room])) == (None, positions(*said))
    said += talk(room, 1)
    write()
    assert Feed.objects.get(user_id=BOB).entries == 1
    assert ids(answer(BOB, token, monkeypatch, now=here()).events) == said
    found = json.loads(purge(json=True))
    assert found == {"feeds": 2, "entries": 4, "feeds_left": 0, "entries_left": 0, "dry_run": False}
