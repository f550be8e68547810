"""Lines and rows for workers of later versions of Synapse."""

from __future__ import annotations

import pytest

from streams.replication.redis.later_version import LaterLines, is_later

EVENT = '["$e","!r","m.room.topic","",null,null,null,false'


def turned(*lines: str) -> list[str]:
    turn = LaterLines()
    return [line.decode() for line in turn.turn(line.encode() for line in lines)]


@pytest.mark.parametrize("stream", ["tag_account_data", "groups", "user_signature"])
def test_streams_that_are_gone_are_left_out(stream):
    assert turned(f"POSITION {stream} master 1 1", f'RDATA {stream} master 2 ["@u"]', "REPLICATE ") == ["REPLICATE "]


def test_other_streams_pass_as_they_are():
    lines = ["POSITION caches master 1 4", 'RDATA caches w-1 5 ["x y",null,7]', 'RDATA typing m 6 ["!r",[]]']
    assert turned(*lines) == lines


def test_events_tell_whether_they_are_outliers():
    assert turned(
        f'RDATA events master batch ["ev",{EVENT}]]', 'RDATA events master 7 ["state",["!r","m.room.topic","","$e"]]'
    ) == [
        f'RDATA events master batch ["ev",{EVENT},false]]', 'RDATA events master 7 ["state",["!r","m.room.topic","","$e"]]'
    ]  # fmt: skip


def test_receipts_have_a_thread():
    line = 'RDATA receipts master 2 ["!r","m.read","@u","$e",{"ts":1}]'
    assert turned(line) == ['RDATA receipts master 2 ["!r","m.read","@u","$e",null,{"ts":1}]']


def test_device_lists_are_of_users():
    assert turned('RDATA device_lists master 5 ["@u:x"]') == ['RDATA device_lists master 5 ["@u:x",false,false]']


def test_a_fact_that_loses_its_last_row_still_ends():
    assert turned(
        'RDATA device_lists master batch ["@u:x"]', 'RDATA device_lists master batch ["@v:x"]',
        'RDATA device_lists master 9 ["server.x"]',
    ) == ['RDATA device_lists master batch ["@u:x",false,false]', 'RDATA device_lists master 9 ["@v:x",false,false]']  # fmt: skip


def test_a_fact_without_rows_is_a_position():
    lines = ["POSITION device_lists master 4 4", 'RDATA device_lists master 9 ["server.x"]']
    assert turned(*lines) == ["POSITION device_lists master 4 4", "POSITION device_lists master 4 9"]
    assert turned(lines[1]) == []  # nobody was told where it is: the next POSITION does


def test_writers_do_not_mix():
    assert turned(
        'RDATA device_lists a batch ["@u:x"]', 'RDATA device_lists b 8 ["@v:x"]', 'RDATA device_lists a 9 ["@w:x"]'
    ) == [
        'RDATA device_lists b 8 ["@v:x",false,false]',
        'RDATA device_lists a batch ["@u:x",false,false]',
        'RDATA device_lists a 9 ["@w:x",false,false]',
    ]


def test_versions():
    assert not is_later("1.43")
    assert is_later("1.163") and is_later("1.157.1") and is_later("2.0")
    for bad in ("", "1", "1.x", "1.66", "v1.163", "1.163.2.1"):
        with pytest.raises(ValueError, match=r"1\.43"):
            is_later(bad)
