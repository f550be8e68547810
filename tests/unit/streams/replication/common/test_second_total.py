"""A total for each second."""

from streams.replication.common.second_total import SecondTotal


def test_a_total_lasts_a_second_from_its_first_addition():
    total = SecondTotal()
    for now, before in ((5.0, 0), (5.4, 3), (5.999, 6), (6.0, 0), (6.5, 3), (60.0, 0)):
        assert total.at(now) == before
        total.add(3)
