"""Streams that share a sequence: the position of each moves when any of them is written, and none lags for ever."""

from __future__ import annotations

import pytest
from django.core.checks import run_checks
from django.db import transaction

from streams import registry
from streams.errors import WriterNotAllowed
from streams.homeserver import append
from streams.maintenance import check
from streams.testing import forget_writers
from tests.support.waiting import wait_until
from tests.support.writing import in_thread, linear, session, stored

pytestmark = pytest.mark.django_db(transaction=True)

PAIRS = [("account_data", "tag_account_data"), ("device_lists", "user_signature")]


def at(name: str, token: int) -> None:
    wait_until(lambda: linear(name) >= token, what=f"{name} at {token}: {stored(name)}")
    assert linear(name) == token


def test_pairs_are_those_of_the_protocol():
    sharing = {name: [other.name for other in registry.get(name).sharing] for name in registry.names()}
    assert {name: others for name, others in sharing.items() if others} == {
        one: [other] for pair in PAIRS for one, other in (pair, pair[::-1])
    }


def test_both_positions_move_when_either_is_written():
    token = append.account_data_changed("@u:x", "t")
    at("account_data", token)
    at("tag_account_data", token)
    token = append.set_tags("@u:x", "!r:x", {})
    at("tag_account_data", token)
    at("account_data", token)


def test_device_lists_and_signatures_move_together():
    token = append.signatures_changed("@u:x")
    at("device_lists", token)
    token = append.devices_changed(["@u:x", "other.example"])
    at("user_signature", token)


def test_open_transaction_on_one_stream_holds_only_that_one_back():
    first = append.account_data_changed("@u:x", "t")
    at("tag_account_data", first)
    with transaction.atomic():
        append.account_data_changed("@u:x", "t")
        others: list[int] = []
        in_thread(lambda: others.append(append.set_tags("@u:x", "!r:x", {}))).join()
        at("tag_account_data", others[0])
        assert linear("account_data") == first
    at("account_data", others[0])


def test_rolled_back_reservation_holds_nothing_back():
    with pytest.raises(RuntimeError), transaction.atomic():
        append.account_data_changed("@u:x", "t")
        raise RuntimeError
    token = append.set_tags("@u:x", "!r:x", {})
    at("account_data", token)
    at("tag_account_data", token)


def test_writer_in_another_process_moves_both_for_all(run_manage):
    token = append.account_data_changed("@u:x", "t")
    at("tag_account_data", token)
    done = run_manage("append", "tag_account_data", "--count", "3", "--instance", "other")
    assert done.returncode == 0, done.stderr
    at("tag_account_data", token + 3)
    at("account_data", token + 3)


def test_writer_that_may_write_only_one_writes_only_that(settings):
    settings.REPLSITE_WRITERS = {"tag_account_data": ["someone-else"]}
    append.account_data_changed("@u:x", "t")
    with pytest.raises(WriterNotAllowed):
        append.set_tags("@u:x", "!r:x", {})


def test_check_warns_of_different_writers_for_one_sequence(settings):
    settings.REPLSITE_WRITERS = {"tag_account_data": ["someone-else"]}
    found = {message.id: message.msg for message in run_checks()}
    assert "tag_account_data" in found["streams.W002"] and "account_data" in found["streams.W002"]


def test_sequence_behind_the_other_table_is_found_and_repaired():
    token = max(append.account_data_changed("@u:x", "t") for _ in range(3))
    at("tag_account_data", token)
    forget_writers()
    with session() as cursor:
        cursor.execute("DELETE FROM streams_streamposition")
        cursor.execute("SELECT setval('streams_accountdatachange_seq', 1)")
        verdicts = {found.stream: found.verdict for found in check.inspect_streams(cursor)}
        assert verdicts["tag_account_data"] == verdicts["account_data"] == "sequence behind table"
        check.repair(cursor, registry.get("tag_account_data"))
        assert all(found.well for found in check.inspect_streams(cursor))
    assert append.set_tags("@u:x", "!r:x", {}) == token + 1
