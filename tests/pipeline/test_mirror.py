"""A mirror of a running Synapse ends with the rows that one import of the final database gives, whatever happens to either."""

from __future__ import annotations

import io
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import psycopg2
import pytest
from django.core.management import call_command
from django.db import InterfaceError, OperationalError, connection

from events.integrity.repair import check_room
from events.models import Event, Room
from events.persist import next_rows
from events.reading.state_at import state_at
from pipeline.errors import MirrorElsewhere, SourceWentBack, UnusableSource
from pipeline.mirror import store as storing
from pipeline.mirror.mirroring import MirrorRequest, mirror
from pipeline.mirror.source import SynapseSource
from pipeline.mirror.store import MirrorStore
from pipeline.models import MirroredServer, QuarantinedLine
from streams.jobs.history import Kept, remove_old_jobs
from streams.jobs.rows import hold_lock
from streams.replication.connectors import connector_to, redis_address
from streams.replication.recording.recorder import RecorderBusy
from tests.pipeline.imports import content, run_import
from tests.pipeline.test_known_rooms import same
from tests.support.cutting_proxy import Cut, CuttingProxy
from tests.support.emptying import empty_tables
from tests.support.ports import free_port
from tests.support.redis_server import redis_server
from tests.support.session import PROJECT
from tests.support.synapse_database import add_groups
from tests.support.synapse_server import (
    SERVER_NAME,
    RedisWire,
    TcpWire,
    Told,
    Writer,
    play,
    run,
    synapse_database,
    told_events,
)
from tests.support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark")]

ROOMS = ("v10_gap", "v10_rejected", "v11_redactions", "v12_power_fork", "v6_membership_visibility")
PAGE = PROJECT / "docs" / "how-to" / "mirror-a-synapse.md"
ROLE = f"reader_{os.getpid()}"


@pytest.fixture
def synapse(database_url):
    """An empty Synapse: the URL of its database."""
    with synapse_database(database_url) as url:
        yield url


@pytest.fixture
def wire():
    found = TcpWire()
    yield found
    found.close()


@pytest.fixture
def master(synapse, wire):
    writer = Writer(synapse, "master", wire)
    wire.positions = writer.positions
    yield writer
    writer.close()


def catch_up(url, address, **options):
    """Mirror until everything is here, in this process: the outcome, and what the command prints when it is."""
    options = {"name": "mirror", "server_name": SERVER_NAME, **options}
    connector = connector_to({"address": address}, redis_address(address), options["name"], options["server_name"])
    printed: list[str] = []
    outcome = mirror(MirrorRequest(url, address, connector, **options, once=True), printed.append, io.StringIO())
    assert printed == [f"ready mirror={options['name']}"]
    return outcome


def assert_like_a_clean_import(url):
    found = content()
    empty_tables()
    assert run_import(url).quarantined == 0
    assert same(found) == same(content())


def live(room, first, last=None):
    return told_events(room)[first:last]


# --- the same rows --------------------------------------------------------------------------------------------------------


def test_rooms_that_grow_end_like_one_import(synapse, wire, master):
    rooms = {room: told_events(room) for room in ROOMS}
    for events in rooms.values():
        master.store(*events[: len(events) // 2])
    filled = catch_up(synapse, wire.address)
    assert filled.filled["quarantined"] == 0 and filled.events == 0
    play(synapse, [master], ROOMS, seed=1, per_second=10_000, done=lambda: None)
    outcome = catch_up(synapse, wire.address)
    assert (outcome.filled, outcome.refused) == (None, 0)
    assert outcome.events == sum(len(events) - len(events) // 2 for events in rooms.values())
    assert_like_a_clean_import(synapse)


def test_a_filling_that_was_killed_long_ago_is_not_resumed(synapse, wire, master, monkeypatch):
    """It would cover the events of its own time, and what came between it and the mirror would be in neither."""
    events = told_events("v10_rejected")
    master.store(*events[:20])
    with pytest.raises(OSError, match="ended"):
        run_import(synapse, pause=fail_after("read"))
    master.store(*events[20:30])
    assert catch_up(synapse, wire.address).filled["imported"] == 30
    assert_like_a_clean_import(synapse)


def fail_after(wanted):
    def pause(step):
        if step == wanted:
            raise OSError("ended")

    return pause


def test_rooms_that_an_import_has_stored_already_keep_the_servers_verdicts(synapse, wire, master):
    events = {room: told_events(room) for room in ("v10_gap", "v10_rejected")}
    for told in events.values():
        master.store(*told[: len(told) // 2])
    run_import(synapse)
    for told in events.values():
        master.store(*told[len(told) // 2 :])
    assert catch_up(synapse, wire.address).filled["quarantined"] == 0
    assert_like_a_clean_import(synapse)


@pytest.mark.parametrize("batch", [1, pytest.param(7, marks=pytest.mark.scenario)])
def test_batches_that_are_cut_lose_nothing(synapse, wire, master, monkeypatch, batch):
    monkeypatch.setattr(storing, "EVENTS_PER_BATCH", batch)
    master.store(*live("v10_gap", 0, 1))
    catch_up(synapse, wire.address)
    play(synapse, [master], ["v10_gap", "v11_redactions"], seed=batch, per_second=10_000, done=lambda: None)
    catch_up(synapse, wire.address)
    assert_like_a_clean_import(synapse)


def test_a_mirror_that_is_far_behind_reads_a_part_of_the_positions_at_a_time(synapse, wire, master, monkeypatch):
    events = told_events("v10_rejected")
    master.store(*events[:10])
    catch_up(synapse, wire.address)
    first = MirroredServer.objects.get().positions["events"]["master"]
    for one in events[10:20]:
        run(synapse, "SELECT setval('events_stream_seq', nextval('events_stream_seq') + 19)")
        master.store(one)
    monkeypatch.setattr(storing, "POSITIONS_PER_BATCH", 50)
    announced = {stream: {"master": place.position} for stream, place in master.places.items()}
    with closing(SynapseSource(synapse)) as source:
        store = MirrorStore(MirroredServer.objects.get(), source, "default")
        reached = []
        while store.advance(announced):
            reached.append(store.position_of("events", "master"))
    assert reached == [first + 50, first + 100, first + 150, first + 200]
    assert store.total.events == 10
    assert_like_a_clean_import(synapse)


def test_an_event_that_is_open_while_rooms_are_filled_comes_afterwards(synapse, wire, master):
    first, second = told_events("v10_rejected"), told_events("v11_redactions")
    master.store(*first[:20], *second[:20])
    held = master.begin(first[20])
    master.store(*second[20:40])
    catch_up(synapse, wire.address)
    master.end(held)
    outcome = catch_up(synapse, wire.address)
    assert outcome.events == 1
    assert_like_a_clean_import(synapse)


def test_what_was_rolled_back_holds_nothing_back(synapse, wire, master):
    events = told_events("v10_rejected")
    master.store(*events[:10])
    catch_up(synapse, wire.address)
    master.end(master.begin(events[10]), commit=False)
    master.store(events[10])
    outcome = catch_up(synapse, wire.address)
    assert outcome.events == 1 and outcome.positions["events"]["master"] == master.places["events"].position


def test_an_outlier_that_gets_its_place(synapse, wire, master):
    events = told_events("v10_visibility_walk")
    late = next(n for n, one in enumerate(events) if n > 60 and one.about["json"]["type"] == "m.room.message")
    master.store(*events[:late])
    master.store(as_outlier(events[late]))
    catch_up(synapse, wire.address)
    master.end(master.begin(events[late], is_move=True))
    master.store(*events[late + 1 :])
    outcome = catch_up(synapse, wire.address)
    assert outcome.refused == 0 and outcome.events == len(events) - late
    assert_like_a_clean_import(synapse)


def test_events_of_a_writer_that_never_says_a_word(synapse, wire, master, monkeypatch):
    events = told_events("v10_rejected")
    master.store(*events[:10])
    catch_up(synapse, wire.address)
    gone = Writer(synapse, "gone", wire)
    for one in events[10:20]:
        gone.end(gone.begin(one), announce=False)
    gone.close()
    master.store(*live("v11_redactions", 0, 5))
    assert catch_up(synapse, wire.address).events == 5
    monkeypatch.setattr(storing, "SILENT_SECONDS", 0.0)
    assert catch_up(synapse, wire.address).events == 10
    assert_like_a_clean_import(synapse)


def test_moves_of_events_that_are_gone_hide_nothing(synapse, wire, master, monkeypatch):
    """A purge on the server leaves rows of ``ex_outlier_stream``, which fill a batch without an event."""
    monkeypatch.setattr(storing, "EVENTS_PER_BATCH", 5)
    events = told_events("v10_rejected")
    master.store(*events[:10])
    catch_up(synapse, wire.address)
    run(synapse, "INSERT INTO ex_outlier_stream SELECT nextval('events_stream_seq'), '$gone', 1, 'master'")
    master.store(*events[10:20])
    assert catch_up(synapse, wire.address).events == 10
    assert_like_a_clean_import(synapse)


def test_a_mirror_that_ended_before_states_above_a_gap_were_known_goes_on_with_them(synapse, wire, master, monkeypatch):
    monkeypatch.setattr(next_rows, "MOST_FILLED", 3)
    events = told_events("v10_gap")
    old = [one for one in events if one.stream == "backfill"]
    master.store(*events[: -len(old)])
    catch_up(synapse, wire.address)
    master.store(*old)
    with monkeypatch.context() as patch:
        patch.setattr(storing, "resolve_room", ended)
        with pytest.raises(OSError, match="ended"):
            catch_up(synapse, wire.address)
    catch_up(synapse, wire.address)
    assert_like_a_clean_import(synapse)


def ended(*_):
    raise OSError("ended")


def test_a_commit_whose_answer_was_lost_is_no_other_process(synapse, wire, master, monkeypatch):
    events = told_events("v10_rejected")
    master.store(*events[:10])
    catch_up(synapse, wire.address)
    master.store(*events[10:20])
    announced = {stream: {"master": place.position} for stream, place in master.places.items()}
    given = connection.get_connection_params()
    with (
        CuttingProxy(given["host"], int(given["port"])) as proxy,
        closing(SynapseSource(synapse)) as source,
        monkeypatch.context() as patch,
    ):
        connection.close()
        through = {**given, "host": "127.0.0.1", "port": proxy.port}
        patch.setattr(connection, "get_connection_params", lambda: through)
        store = MirrorStore(MirroredServer.objects.get(), source, "default")
        for cut in (Cut.ANSWER, Cut.QUESTION, Cut.ANSWER):
            proxy.cut = cut
            with pytest.raises((OperationalError, InterfaceError)):
                store.advance(announced)
            connection.close()
        proxy.cut = Cut.NOTHING
        assert store.advance(announced) is False
        connection.close()
    assert MirroredServer.objects.get().events == 10


def test_an_invite_that_came_before_the_room_is_here_in_the_end(synapse, wire, master):
    """The server holds it as an outlier, with the room's version and without the create event, until a user joins."""
    events = told_events("v10_visibility_walk")
    place = next(
        n for n, one in enumerate(events) if one.about["json"].get("content", {}).get("membership") == "invite"
    )
    invite, room_id = events.pop(place), events[0].about["json"]["room_id"]
    master.store(*live("v10_rejected", 0, 10))
    catch_up(synapse, wire.address)
    run(synapse, "INSERT INTO rooms (room_id, room_version) VALUES (%s, '10')", room_id)
    master.store(as_outlier(invite))
    assert catch_up(synapse, wire.address).refused == 0
    run(synapse, "DELETE FROM rooms WHERE room_id = %s", room_id)  # stored again with the create event
    master.store(*events[:30])
    assert catch_up(synapse, wire.address).refused == 0
    assert {event_id for (event_id,) in run(synapse, "SELECT event_id FROM events")} == set(
        Event.objects.values_list("event_id", flat=True)
    )


# --- states above gaps -----------------------------------------------------------------------------------------------------


def give_groups(url, room):
    """The server's own state groups of a shipped room, which the made server does not work out."""
    with closing(psycopg2.connect(url)) as admin, admin, admin.cursor() as cursor:
        add_groups(cursor.execute, room)


def assert_states_are_the_servers(url, events):
    with closing(SynapseSource(url)) as source:
        states = source.states([one.event_id for one in events])
    assert len(states) == len(events)
    for one in events:
        assert state_at(one.event_id).after == states[one.event_id].entries


def as_outlier(one):
    return Told({**one.about, "outlier": True, "internal_metadata": {"outlier": True}}, one.line)


@pytest.mark.parametrize("first", [20, 70, 131])
def test_events_above_gaps_have_the_state_that_the_server_was_given(synapse, wire, master, first):
    """Of the room's 131 live events five stand on events that came later, by backfill: the 31st and others."""
    events = told_events("v10_gap")
    now, old = [one for one in events if one.stream == "events"], [one for one in events if one.stream == "backfill"]
    states = [one for one in old if "state_key" in one.about["json"]]
    give_groups(synapse, "v10_gap")
    master.store(*map(as_outlier, states), *now[:first])
    catch_up(synapse, wire.address)
    master.store(*now[first:])
    catch_up(synapse, wire.address)
    assert not Event.objects.filter(state_unresolved=True).exists()
    assert_states_are_the_servers(synapse, now)
    before = content()["current"]
    for one in old:
        master.end(master.begin(one, is_move=one in states))
    assert catch_up(synapse, wire.address).refused == 0
    assert_states_are_the_servers(synapse, events)
    assert content()["current"] == before


def test_a_state_waits_for_its_entries(synapse, wire, master):
    """They may have positions of another writer, or of the other stream. A state without them would be a wrong one."""
    events = told_events("v10_gap")
    now, old = [one for one in events if one.stream == "events"], [one for one in events if one.stream == "backfill"]
    give_groups(synapse, "v10_gap")
    master.store(*now[:20])
    catch_up(synapse, wire.address)
    master.store(*now[20:])
    announced = {stream: {"master": place.position} for stream, place in master.places.items()}
    with closing(SynapseSource(synapse)) as source:
        store = MirrorStore(MirroredServer.objects.get(), source, "default")
        store.advance(announced)
        assert Event.objects.filter(state_unresolved=True).exists()
        master.store(*(as_outlier(one) for one in old if "state_key" in one.about["json"]))
        store.advance({stream: {"master": place.position} for stream, place in master.places.items()})
        store.give_waiting_states()
    assert not Event.objects.filter(state_unresolved=True).exists()
    assert_states_are_the_servers(synapse, now)


def test_a_room_that_was_joined_over_federation_has_its_state(synapse, wire, master):
    """The server got the state before the join, as outliers, and nothing of the history."""
    events = told_events("v10_visibility_walk")
    outliers = [as_outlier(one) for one in events[:60] if "state_key" in one.about["json"]]
    give_groups(synapse, "v10_visibility_walk")
    master.store(*live("v10_rejected", 0, 10))
    catch_up(synapse, wire.address)
    master.store(*outliers, *events[60:])
    assert catch_up(synapse, wire.address).refused == 0
    assert_states_are_the_servers(synapse, events[60:])
    room = Room.objects.get(pk=events[0].about["json"]["room_id"])
    assert not room.current_state_unresolved and not room.visibility_unresolved
    assert check_room(room.pk).differences == []


def test_a_state_of_which_the_server_has_nothing_stays_unknown(synapse, wire, master):
    events = [one for one in told_events("v10_gap") if one.stream == "events"]
    old = [one for one in told_events("v10_gap") if one.stream == "backfill" and "state_key" in one.about["json"]]
    give_groups(synapse, "v10_gap")
    master.store(*map(as_outlier, old))
    run(synapse, "DELETE FROM event_to_state_groups WHERE event_id = %s", events[30].event_id)
    master.store(*events[:40])
    assert catch_up(synapse, wire.address).refused == 0
    assert Event.objects.filter(state_unresolved=True).exists()
    give_later = (
        "INSERT INTO event_to_state_groups SELECT %s, state_group FROM event_to_state_groups WHERE event_id = %s"
    )
    run(synapse, give_later, events[30].event_id, events[31].event_id)
    catch_up(synapse, wire.address)
    assert not Event.objects.filter(state_unresolved=True).exists()


# --- live ------------------------------------------------------------------------------------------------------------------


@contextmanager
def mirroring(start_manage, url, address):
    """The command in a process of its own, on rooms that are filled."""
    process = start_manage("mirror", url, address, "--server-name", SERVER_NAME)
    assert process.stdout.readline() == "ready mirror=mirror\n"
    yield process
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    assert json.loads(out.splitlines()[-1])["refused"] == 0


def stored_here(rows, *event_ids):
    return lambda: (
        rows("SELECT count(*) FROM events_event WHERE event_id = ANY (%s)", list(event_ids)) == [(len(event_ids),)]
    )


def test_it_follows_over_lost_connections(synapse, wire, master, start_manage, rows):
    events = told_events("v11_redactions")
    master.store(*events[:10])
    catch_up(synapse, wire.address)
    with mirroring(start_manage, synapse, wire.address) as process:
        master.store(*events[10:20])
        wait_until(stored_here(rows, events[19].event_id))
        wire.cut()
        master.store(*events[20:30])
        wait_until(stored_here(rows, events[29].event_id))
        run(
            synapse,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'replsite mirror' AND datname = current_database()",
        )
        master.store(*events[30:])
        wait_until(stored_here(rows, *(one.event_id for one in events)))
        with pytest.raises(RecorderBusy, match=str(process.pid)):
            catch_up(synapse, wire.address)
    recorded = rows("SELECT stream, writer, position FROM streams_recordedposition WHERE stream = 'events'")
    assert recorded == [("events", "master", master.places["events"].position)]
    assert_like_a_clean_import(synapse)


@pytest.mark.scenario
def test_several_writers_over_redis(synapse, tmp_path, start_manage, rows):
    with redis_server(tmp_path, free_port()) as server, closing(RedisWire(server.port)) as wire:
        writers = [Writer(synapse, name, wire) for name in ("persister1", "persister2")]
        wire.positions = lambda: [one for writer in writers for one in writer.positions()]
        writers[0].store(*live("v10_gap", 0, 5))
        catch_up(synapse, wire.address)
        with mirroring(start_manage, synapse, wire.address):
            play(synapse, writers, ["v10_gap", "v11_redactions", "v9_restricted"], 3, 10_000, lambda: None)
            total = run(synapse, "SELECT count(*) FROM events")
            wait_until(lambda: rows("SELECT count(*) FROM events_event") == total)
        assert_like_a_clean_import(synapse)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.scenario) for seed in range(2, 8))])
def test_kills_of_either_side_at_any_moment(synapse, start_manage, seed, rows):
    chance, port = random.Random(seed), free_port()
    address = f"tcp://127.0.0.1:{port}"
    with server_process(synapse, address, seed) as server:
        catch_up(synapse, address)
        follower = start_manage("mirror", synapse, address, "--server-name", SERVER_NAME)
        for _ in range(5):
            before = Event.objects.count()
            wait_until(lambda: Event.objects.count() > before or server.is_done())  # noqa: B023 - called at once
            time.sleep(chance.uniform(0.0, 0.6))  # at any moment, also within a transaction
            if chance.random() < 0.5:
                server.restart()
            else:
                follower.kill()
                follower.wait()
                follower = start_manage("mirror", synapse, address, "--server-name", SERVER_NAME)
        server.wait_until_done()
        follower.kill()
        follower.wait()
        assert catch_up(synapse, address).refused == 0
    assert_like_a_clean_import(synapse)


class _ServerProcess:
    def __init__(self, *arguments):
        self._arguments = arguments
        self.start()

    def start(self):
        command = [sys.executable, "-m", "tests.support.synapse_server", *self._arguments]
        env = {**os.environ, "DJANGO_SETTINGS_MODULE": "replsite.settings"}
        self._process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, env=env)
        assert self._process.stdout.readline() == "ready\n"

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def restart(self):
        self.kill()
        self.start()

    def is_done(self):
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def wait_until_done(self):
        assert self._process.stdout.readline() == "done\n"


@contextmanager
def server_process(url, address, seed):
    process = _ServerProcess(url, address, str(seed), "50", *ROOMS)
    try:
        yield process
    finally:
        process.kill()


# --- what cannot be --------------------------------------------------------------------------------------------------------


def test_rooms_that_were_purged_here_stay_away(synapse, wire, master, rows):
    events = told_events("v10_rejected")
    master.store(*events[:10])
    catch_up(synapse, wire.address)
    call_command("purge", "room", events[0].about["json"]["room_id"], "--force", "--yes", stdout=io.StringIO())
    master.store(*events[10:20])
    outcome = catch_up(synapse, wire.address)
    assert (outcome.events, outcome.left_out, outcome.refused) == (0, 10, 0)


def test_what_cannot_be_stored_is_put_aside_with_the_reason(synapse, wire, master):
    events = told_events("v10_rejected")
    master.store(*events[:10])
    catch_up(synapse, wire.address)
    run(synapse, "CREATE FUNCTION bad() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.json = '{'; RETURN NEW; END $$; "
        "CREATE TRIGGER bad BEFORE INSERT ON event_json FOR EACH ROW EXECUTE FUNCTION bad()")  # fmt: skip
    master.store(events[10])
    outcome = catch_up(synapse, wire.address)
    assert (outcome.events, outcome.refused) == (0, 1)
    line = QuarantinedLine.objects.get()
    assert (line.reason, line.line) == ("not-json", master.places["events"].position)
    assert MirroredServer.objects.get().refused == 1


def test_a_mirror_outlives_the_job_that_filled_it(synapse, wire, master):
    events = told_events("v10_rejected")
    master.store(*events[:10])
    catch_up(synapse, wire.address)
    with hold_lock("default") as lock:
        assert remove_old_jobs(lock, "default", Kept(days=0, jobs=0)) == 1
    master.store(*events[10:])
    assert catch_up(synapse, wire.address).events == len(events) - 10


def test_a_role_with_the_named_rights_is_enough(synapse, wire, master, rows):
    master.store(*live("v10_rejected", 0, 10))
    server = urlsplit(synapse)
    reading = f"postgresql://{ROLE}:change%20me@{server.hostname}:{server.port}{server.path}"
    role, imported, *more = re.findall(r"^(?:CREATE ROLE|GRANT) .*;$", PAGE.read_text(), re.MULTILINE)
    run(synapse, f"{role} {imported}".replace("reader", ROLE))
    try:
        with pytest.raises(UnusableSource, match="GRANT SELECT ON stream_positions, ex_outlier_stream, event_to"):
            catch_up(reading, wire.address)
        run(synapse, " ".join(more).replace("reader", ROLE))
        catch_up(reading, wire.address)
        master.store(*live("v10_rejected", 10))
        assert catch_up(reading, wire.address).refused == 0
    finally:
        run(synapse, f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")


def test_a_database_that_went_back_is_refused(synapse, wire, master):
    master.store(*live("v10_rejected", 0, 10))
    catch_up(synapse, wire.address)
    run(synapse, "SELECT setval('events_stream_seq', 5)")
    with pytest.raises(SourceWentBack, match="restored from a backup"):
        catch_up(synapse, wire.address)


def test_a_database_that_went_back_under_an_open_connection_is_refused(synapse, wire, master):
    master.store(*live("v10_rejected", 0, 10))
    catch_up(synapse, wire.address)
    announced = {stream: {"master": place.position} for stream, place in master.places.items()}
    with closing(SynapseSource(synapse)) as source:
        store = MirrorStore(MirroredServer.objects.get(), source, "default")
        assert not store.advance(announced)
        run(synapse, "SELECT setval('events_stream_seq', 5)")
        with pytest.raises(SourceWentBack, match="restored from a backup"):
            store.advance(announced)


def test_positions_that_the_database_has_not_given_out_are_refused(synapse, wire, master):
    """They are those of a copy of the server, on the same Redis for instance: what comes up to them would never be read."""
    master.store(*live("v10_rejected", 0, 10))
    catch_up(synapse, wire.address)
    copy = master.places["events"]
    copy.position = copy.highest = copy.position + 1_000
    with pytest.raises(SourceWentBack, match="not the database of this server"):
        catch_up(synapse, wire.address)
    assert MirroredServer.objects.get().positions["events"]["master"] == copy.position - 1_000


def test_a_name_is_of_one_server(synapse, wire, master):
    master.store(*live("v10_rejected", 0, 10))
    catch_up(synapse, wire.address)
    MirroredServer.objects.update(server_name="other.example")
    with pytest.raises(MirrorElsewhere, match=r"mirror of other\.example, not of .* another --name"):
        catch_up(synapse, wire.address)


@pytest.mark.parametrize(
    "arguments, why",
    [
        (("sqlite.db", "tcp://127.0.0.1:1"), "write postgresql://"),
        (("postgresql:///x", "http://127.0.0.1:1"), "tcp"),
        (("postgresql:///x", "tcp://127.0.0.1:1", "--name", "a/b"), "no name for a record"),
        (("postgresql://nobody@127.0.0.1:1/x", "tcp://127.0.0.1:1"), "Cannot read"),
    ],
)
def test_unusable_arguments_are_status_2(run_manage, arguments, why):
    done = run_manage("mirror", *arguments)
    assert done.returncode == 2 and why in done.stderr
