"""What workers say takes effect in every process: a replication server process, clients on plain sockets, our own API."""

from __future__ import annotations

import time

import pytest

from streams import workers
from streams.catalog.models import FederationItem
from streams.homeserver import federation_queue
from streams.models import FederationAcknowledgement, SyncingUser, UserAddress, WireCount, WorkerConnection
from streams.replication.common import worker_sql
from streams.replication.errors import UnsendableCommand
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import WireClient, positioned, ready_ports, start_replication
from tests.support.writing import linear, session

pytestmark = pytest.mark.django_db(transaction=True)
NOW_MS = int(time.time() * 1000)


def syncing(*users: str) -> None:
    wait_until(lambda: workers.users_syncing() == set(users), what=f"syncing: {users}")


def test_a_command_that_gets_too_long_in_ascii_is_dropped_and_its_client_stays(port):
    with WireClient(port, "REPLICATE") as client:
        client.read_until("POSITION caches")
        client.say('LOCK_RELEASED ["a", "b", "{}"]'.format("\u00e4" * 8_000))
        client.say("REPLICATE")
        client.read_until(lambda _: len(client.of("POSITION caches")) == 2)
    wait_until(lambda: WireCount.objects.filter(kind="dropped", name="LOCK_RELEASED", total=1).exists())


# --- who syncs ----------------------------------------------------------------------------------------------------


def test_who_syncs_is_known_until_the_last_worker_says_end_or_is_gone(port):
    with WireClient(port, f"NAME w1\nUSER_SYNC zHeCu @a:b start {NOW_MS}\nUSER_SYNC zHeCu @c:b start 1") as first:
        syncing("@a:b", "@c:b")
        assert workers.is_syncing("@a:b")
        assert not workers.is_syncing("@other:b")
        assert WorkerConnection.objects.get().name == "w1"
        devices = "USER_SYNC two @d:b D1 start 1\nUSER_SYNC two @d:b D2 start 1"
        with WireClient(port, f"USER_SYNC two @a:b start 1\n{devices}") as second:
            wait_until(lambda: SyncingUser.objects.count() == 5)
            first.say(f"USER_SYNC zHeCu @a:b end {NOW_MS}\n")
            second.say("USER_SYNC two @d:b D1 end 2")
            wait_until(lambda: SyncingUser.objects.count() == 3)
            syncing("@a:b", "@c:b", "@d:b")
            assert SyncingUser.objects.get(user_id="@d:b").device_id == "D2"
            second.say("CLEAR_USER_SYNC two")
            syncing("@c:b")
            second.say("USER_SYNC two @d:b start 1")
            syncing("@c:b", "@d:b")
        syncing("@c:b")
    syncing()
    wait_until(lambda: not WorkerConnection.objects.exists())


def test_a_worker_that_comes_back_says_anew_who_syncs(port):
    with WireClient(port, "USER_SYNC w @a:b start 1\nUSER_SYNC w @gone:b start 1") as lost:
        syncing("@a:b", "@gone:b")
        with WireClient(port, "USER_SYNC w @a:b start 1"):
            syncing("@a:b")
            lost.socket.close()
            wait_until(lambda: WorkerConnection.objects.count() == 1)
            syncing("@a:b")


def test_users_of_a_stopped_server_are_forgotten(start_manage):
    process = start_manage("runreplication", "--bind", "127.0.0.1:0")
    with WireClient(ready_ports(process)["replication"], "USER_SYNC w @a:b start 1"):
        syncing("@a:b")
        process.terminate()
        assert process.wait(DEADLINE_SECONDS) == 0
    assert not SyncingUser.objects.exists()


def test_users_of_a_killed_server_are_no_longer_syncing_after_the_silence(start_manage, settings):
    process = start_manage("runreplication", "--bind", "127.0.0.1:0")
    with WireClient(ready_ports(process)["replication"], "USER_SYNC w @a:b start 1"):
        syncing("@a:b")
        process.kill()
        process.wait(DEADLINE_SECONDS)
    settings.REPLSITE_WORKER_SILENCE_SECONDS = 0.5
    syncing()


def test_a_server_forgets_connections_without_news(start_manage):
    port = start_replication(start_manage, REPLSITE_WORKER_SILENCE_SECONDS="1", REPLSITE_WRITER="here")
    with session() as cursor:
        cursor.execute(
            "INSERT INTO streams_workerconnection (key, name, served_by, last_news_at) "
            "VALUES ('dead', 'dead', 'elsewhere', now() - interval '1 minute')"
        )
        cursor.execute(
            "INSERT INTO streams_syncinguser (connection_key, worker, user_id, last_sync_at) VALUES ('dead', 'w', '@a:b', now())"
        )
    with WireClient(port, "PING 1"):
        wait_until(lambda: not SyncingUser.objects.exists())


# --- acknowledgements and addresses -------------------------------------------------------------------------------


def test_the_last_acknowledgement_of_each_sender_is_kept(port):
    with (
        WireClient(port, "NAME sender1\nFEDERATION_ACK sender1 0\nFEDERATION_ACK sender1 5"),
        WireClient(port, "NAME sender2\nFEDERATION_ACK sender2 7\nFEDERATION_ACK sender1 9"),
    ):
        wait_until(lambda: workers.federation_acknowledged() == {"sender1": 5, "sender2": 7})


def test_senders_of_ever_new_names_are_bounded(monkeypatch):
    """Each name kept a row for ever. While more may be there than are stored, nothing that they wait for is deleted."""
    monkeypatch.setattr(worker_sql, "MOST_SENDERS", 50)
    tokens = [federation_queue.send_federation([("e", {"number": number})]) for number in range(3)]
    wait_until(lambda: linear("federation") >= tokens[2])
    with session() as cursor:
        worker_sql.store_acknowledgements(cursor, {"real": tokens[0]})
        for batch in range(5):
            worker_sql.store_acknowledgements(
                cursor, {f"{batch}-{n}": tokens[2] for n in range(30)} | {"real": tokens[1]}
            )
        assert FederationAcknowledgement.objects.count() == 50
        assert worker_sql.free_acknowledged(cursor) == 0
        cursor.execute(
            "UPDATE streams_federationacknowledgement SET acknowledged_at = clock_timestamp() - interval '1 year' "
            "WHERE instance_name <> 'real'"
        )
        worker_sql.forget_old(cursor, 60.0, 86_400.0)
        assert list(FederationAcknowledgement.objects.values_list("instance_name", "token")) == [("real", tokens[1])]
        assert worker_sql.free_acknowledged(cursor) == 2


def test_what_every_sender_acknowledged_is_freed(port):
    tokens = [federation_queue.send_federation([("e", {"number": number})]) for number in range(3)]
    wait_until(lambda: linear("federation") >= tokens[2])  # nobody acknowledges what he was not told of
    with (
        WireClient(port, f"NAME slow\nFEDERATION_ACK slow {tokens[0]}") as client,
        WireClient(port, "NAME fast") as fast,
    ):
        wait_until(lambda: FederationItem.objects.count() == 2)
        fast.say(f"FEDERATION_ACK fast {tokens[2]}")
        wait_until(lambda: "fast" in workers.federation_acknowledged())
        assert FederationItem.objects.count() == 2
        client.say(f"FEDERATION_ACK slow {tokens[1]}")
        wait_until(lambda: FederationItem.objects.count() == 1)


def test_an_address_is_one_row_however_often_it_is_seen(port):
    seen = 'USER_IP @a:b ["secret token","1.2.3.4","ua",null,%d]'
    with WireClient(port, "\n".join(seen % (NOW_MS + n) for n in range(50))) as client:
        wait_until(lambda: workers.last_seen("@a:b") is not None)
        client.say(seen % 1_000)
        client.say('USER_IP @a:b ["other","::1","ua2","DEV",5000]')
        wait_until(lambda: len(workers.seen_addresses("@a:b")) == 2)
    first, second = workers.seen_addresses("@a:b")
    assert (first.ip, second.ip, second.device_id, second.user_agent) == ("1.2.3.4", "::1", "DEV", "ua2")
    assert workers.last_seen("@a:b") == first.last_seen_at
    assert abs(first.last_seen_at.timestamp() * 1000 - NOW_MS) < 60_000
    assert not UserAddress.objects.filter(token_digest__contains="secret").exists()
    with WireClient(port, f'USER_IP @future:b ["t","1.2.3.4","ua",null,{NOW_MS * 2}]'):
        wait_until(lambda: workers.last_seen("@future:b") is not None)
    assert abs(workers.last_seen("@future:b").timestamp() - time.time()) < 60, "a time in the future is now"


def test_ever_new_users_fill_no_disk(start_manage):
    """One client that made users up wrote a megabyte of rows a second, for as long as it liked."""
    port = start_replication(start_manage, REPLSITE_USER_ADDRESS_LIMIT="50")
    seen = 'USER_IP @u%d:b ["t%d","1.2.3.4","%s",null,' + f"{NOW_MS}]"

    def dropped() -> int:
        return sum(WireCount.objects.filter(kind="dropped", name="USER_IP").values_list("total", flat=True))

    with WireClient(port, seen % (0, 0, "ua")) as client:
        wait_until(UserAddress.objects.exists)
        for start in range(1, 2_000, 100):
            client.say("\n".join(seen % (n, n, "ua") for n in range(start, start + 100)))
        wait_until(lambda: dropped() == 1_951)
        assert UserAddress.objects.count() == 50
        client.say(seen % (0, 0, "another"))
        wait_until(lambda: workers.seen_addresses("@u0:b")[0].user_agent == "another")
    assert UserAddress.objects.count() == 50


def test_nobody_was_never_seen():
    assert workers.last_seen("@nobody:b") is None
    assert workers.seen_addresses("@nobody:b") == []


def test_odd_text_of_a_worker_stops_nothing(port):
    odd = 'USER_IP @a:b ["\\u0000\\ud800","\\u0000","\\ud800","\\u0000",5]\nUSER_SYNC w\0 @a:b\0 start 99999999999999999999'
    with WireClient(port, odd + "\nNAME sender\nFEDERATION_ACK sender 3"):
        wait_until(lambda: workers.federation_acknowledged() == {"sender": 3})
        syncing("@a:b\ufffd")


# --- told to everybody --------------------------------------------------------------------------------------------


@pytest.fixture
def two_servers(start_manage):
    first = start_replication(start_manage, REPLSITE_WRITER="one")
    second = start_replication(start_manage, REPLSITE_WRITER="two")
    with positioned(first, "a") as a, positioned(first, "b") as b, positioned(second, "c") as c:
        yield a, b, c


def test_remote_server_up_reaches_clients_of_all_servers_but_not_the_sender(two_servers):
    sender, neighbour, far = two_servers
    names = [f"REMOTE_SERVER_UP {name}" for name in ("remote.example", "", "a" * 255, "nul\0 and \u00fcmlaut")]
    for said in names:
        sender.say(said)
        for client in (neighbour, far):
            client.read_until(lambda line, said=said: line == said)
    sender.say("REPLICATE")
    sender.read_until("POSITION caches")
    far.say("REMOTE_SERVER_UP back")
    sender.read_until("REMOTE_SERVER_UP back")
    assert sender.of("REMOTE_SERVER_UP") == ["REMOTE_SERVER_UP back"]
    assert far.of("REMOTE_SERVER_UP") == names


def test_commands_of_later_versions_go_to_those_that_know_them(two_servers):
    """A client of 1.43 would end the connection."""
    sender, old, far = two_servers
    far.say("NEW_ACTIVE_TASK one")
    sender.say('LOCK_RELEASED ["w","lock","key"]\nCANCEL_TASK two\nREMOTE_SERVER_UP last')
    far.read_until("CANCEL_TASK two")
    assert far.of("LOCK_RELEASED") == ['LOCK_RELEASED ["w","lock","key"]']
    old.read_until("REMOTE_SERVER_UP last")
    assert not old.of(
        "LOCK_RELEASED",
    ) and not old.of("NEW_ACTIVE_TASK")


def test_any_process_may_tell_all_workers(two_servers):
    workers.remote_server_up("from.here")
    for client in two_servers:
        client.read_until("REMOTE_SERVER_UP from.here")
    with pytest.raises(UnsendableCommand):
        workers.remote_server_up("two\nlines")


# --- counts -------------------------------------------------------------------------------------------------------


def counted(kind: str, name: str) -> int:
    return sum(WireCount.objects.filter(kind=kind, name=name).values_list("total", flat=True))


def test_commands_and_ends_of_connections_are_counted_for_everybody(port):
    with WireClient(port, "NAME x\nUSER_SYNC w @a:b start 1\nBOGUS") as client:
        client.read_to_end()
    wait_until(lambda: counted("closed", "parse error") == 1)
    wait_until(lambda: counted("received", "USER_SYNC x") == 1)
    assert counted("sent", "ERROR other") == counted("received", "NAME other") == 1
