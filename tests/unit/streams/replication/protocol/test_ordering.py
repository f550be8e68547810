"""The linear view: ascending over all writers, never above the linear position, bounded."""

from streams.replication.protocol.ordering import FollowedRow, LinearView, Range


def fact(token, rows=1, writer="w"):
    return [FollowedRow("s", writer, token, [number]) for number in range(rows)]


def tokens(rows):
    return [row.token for row in rows]


def test_facts_above_the_linear_position_wait():
    view = LinearView(10)
    view.add(fact(13))
    view.add(fact(11))
    assert tokens(view.pop(12)) == [11]
    assert tokens(view.pop(13)) == [13]


def test_rows_of_a_fact_stay_together_and_in_order():
    view = LinearView(10)
    view.add(fact(12, rows=3))
    view.add(fact(11))
    assert [(row.token, row.row) for row in view.pop(20)] == [(11, [0]), (12, [0]), (12, [1]), (12, [2])]


def test_facts_that_were_handed_out_do_not_come_again():
    view = LinearView(10)
    view.add(fact(10))
    assert view.pop(20) == []


def test_a_missing_range_is_read_before_anything_else():
    view = LinearView(10)
    view.add(fact(30))
    view.miss(20)
    assert view.due(25) == Range(10, 20)
    view.read(15)
    assert view.due(25) == Range(15, 20)
    view.read(20)
    assert view.due(25) is None
    assert tokens(view.pop(30)) == [30]


def test_a_missing_range_waits_for_the_linear_position():
    view = LinearView(10)
    view.miss(20)
    assert view.due(10) is None
    assert view.due(12) == Range(10, 12)


def test_what_waits_inside_a_missing_range_is_not_handed_out_twice():
    view = LinearView(10)
    view.add(fact(15))
    view.miss(20)
    view.add(fact(16))
    view.read(20)
    assert view.pop(20) == []
    assert view.buffered_rows == 0


def test_too_many_waiting_rows_become_a_missing_range():
    view = LinearView(10, buffer_limit_rows=5)
    for token in range(11, 18):
        view.add(fact(token))
    assert view.buffered_rows <= 5
    assert view.due(100) == Range(10, 16)
    view.read(16)
    assert tokens(view.pop(100)) == [17]


def test_handing_out_reaches_the_linear_position_without_facts():
    view = LinearView(10)
    view.pop(50)
    assert view.handed_out == 50
