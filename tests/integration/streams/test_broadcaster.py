"""A replication server process, real facts, and clients on plain sockets."""

from __future__ import annotations

import json

import pytest
from django.db import transaction

from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.models import Reader
from tests.support.waiting import wait_until
from tests.support.wire_client import WireClient, positioned, start_replication
from tests.support.writing import append, as_instance, cut, fact, linear, stream

pytestmark = pytest.mark.django_db(transaction=True)


def rdata(line: str) -> tuple[str, str, list]:
    """(writer, token, row) of an RDATA line of the tested stream."""
    _, _, writer, token, row = line.split(" ", 4)
    return writer, token, json.loads(row)


def test_a_fact_reaches_a_client_after_its_commit(port):
    with positioned(port) as client:
        with transaction.atomic():
            append()
        writer, token, row = rdata(client.read_until("RDATA caches"))
    assert (writer, token, row[:2]) == ("master", str(CacheInvalidation.objects.get().stream_id), ["test", ["k"]])


def test_a_client_that_says_nothing_gets_facts_too(port):
    with WireClient(port) as client:
        client.read_until("PING")
        append()
        client.read_until("RDATA caches")


def test_an_open_transaction_is_not_seen(port, run_manage):
    append()  # a writer that is not known yet holds all others back
    with positioned(port) as client:
        with transaction.atomic():
            [open_id] = append()
            run_manage("append", "caches", "--count", "1", "--instance", "other")
            client.read_until("RDATA caches other")
            assert not client.of(f"RDATA caches master {open_id} ")
        client.read_until(f"RDATA caches master {open_id} ")


def test_rows_of_one_fact_are_a_batch(port):
    with positioned(port) as client:
        with stream().reserve(1) as reservation:
            for name in ("one", "two", "three"):
                row = fact(name)
                row.stream_id = reservation.ids[0]
                reservation.write(row)
        last = client.read_until(lambda line: '"three"' in line)
        found = [(token, row[0]) for _, token, row in map(rdata, client.of("RDATA caches"))]
    assert found == [("batch", "one"), ("batch", "two"), (rdata(last)[1], "three")]


def test_positions_come_in_the_order_of_the_table(port):
    append(3)
    with positioned(port) as client:
        lines = client.of("POSITION")
    streams = list(dict.fromkeys(line.split()[1] for line in lines))
    assert streams == [name for name in registry.names() if name != "federation"]
    assert all(line.split()[3] == line.split()[4] for line in lines)


def test_a_new_writer_is_announced_before_its_rows(port):
    append()
    with positioned(port) as client:
        with as_instance("newcomer"):
            append()
            client.read_until("RDATA caches newcomer")
        lines = [line for line in client.lines if " newcomer " in line]
    assert lines[0].startswith("POSITION caches newcomer ")


def test_all_writers_get_to_the_head(port, run_manage):
    """Retired ones, too: none of them may hold a follower's linear position back."""
    append(2)
    run_manage("append", "caches", "--count", "5", "--batch", "5")
    run_manage("append", "caches", "--count", "5", "--instance", "writer-b")
    append(2)
    with positioned(port) as client:
        append()
        head = wait_until(lambda: linear() if linear() >= max(ids_of_table()) else 0)
        for writer in ("append", "writer-b"):
            client.read_until(
                lambda line, w=writer: line.startswith(f"POSITION caches {w}") and line.endswith(f" {head}")
            )


def ids_of_table() -> list[int]:
    return list(CacheInvalidation.objects.values_list("stream_id", flat=True))


def test_a_row_longer_than_a_line_becomes_a_position_beyond_every_cursor(port):
    with positioned(port) as client:
        [long_id] = stream().append(fact("x" * 20_000))
        [next_id] = append()
        client.read_until(f"RDATA caches master {next_id} ")
        assert client.of("POSITION caches master", str(long_id), str(long_id))
        assert client.of("RDATA caches master") == [client.lines[-1]]


def test_the_table_of_readers_shows_a_client_and_its_end(port):
    with positioned(port, "shown") as client:
        [fact_id] = append()
        client.read_until("RDATA caches")
        row = wait_until(lambda: Reader.objects.filter(name="shown", positions__caches__master=fact_id).first())
        assert (row.kind, row.closed_at) == ("connection", None)
        assert row.lines_out >= 4
    closed = wait_until(lambda: Reader.objects.filter(name="shown", closed_at__isnull=False).first())
    assert closed.close_reason == "peer closed"


def test_a_client_that_does_not_read_is_cut_after_whole_lines(start_manage, run_manage):
    port = start_replication(start_manage, REPLSITE_SEND_BUFFER_LIMIT_BYTES="300000")
    with positioned(port, "slow") as slow, positioned(port, "quick") as quick:
        for _ in range(120):  # each time less than the limit, so that the quick one never has more waiting for it
            last = stream().append(*(fact("y" * 10_000) for _ in range(10)))[-1]
            quick.read_until(f"RDATA caches master {last} ")
        wait_until(lambda: Reader.objects.filter(name="slow", close_reason="too slow").exists())
        lines = slow.read_to_end()
    assert lines[-1] == "ERROR Failed to keep up"
    tokens = [int(rdata(line)[1]) for line in lines if line.startswith("RDATA")]
    assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
    assert not quick.of("ERROR")


def test_clients_stay_and_miss_nothing_when_the_database_connection_breaks(port):
    with positioned(port) as client:
        assert cut("replsite broadcaster%")
        assert cut("replsite notifications broad%")
        wanted = append(5)
        client.read_until(lambda line: line.startswith(f"RDATA caches master {wanted[-1]} "))
        assert [int(rdata(line)[1]) for line in client.of("RDATA caches")] == wanted


def test_two_servers_send_the_same(start_manage, port):
    other_port = start_replication(start_manage)
    with positioned(port) as one, positioned(other_port) as other:
        last = append(20)[-1]
        for client in (one, other):
            client.read_until(f"RDATA caches master {last} ")
        assert one.of("RDATA") == other.of("RDATA")
