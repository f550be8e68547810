"""Places of raw connections: those whose clients have not said what they want give way, and an address has its share."""

from __future__ import annotations

import pytest

from streams.replication.transport.tcp_places import TcpPlaces
from streams.replication.transport.tls import Refusal


class Guest:
    def __init__(self) -> None:
        self.gave_way = False

    def abort(self) -> None: ...

    def give_way(self) -> None:
        self.gave_way = True


def come(places: TcpPlaces, host: str, number: int = 1, *, known: bool = False) -> list[Guest]:
    made = [Guest() for _ in range(number)]
    for one in made:
        assert places.enter(one, host) is None
        if known:
            places.know(one)
    return made


def test_the_oldest_unknown_one_of_the_address_with_most_gives_way():
    places = TcpPlaces(5)
    [other] = come(places, "10.0.0.2")
    many = come(places, "10.0.0.1", 4)
    come(places, "10.0.0.3")
    assert [one.gave_way for one in [other, *many]] == [False, True, False, False, False]
    assert len(places) == 5


def test_those_that_are_known_stay_and_one_more_is_refused():
    places = TcpPlaces(2)
    there = come(places, "10.0.0.1", 2, known=True)
    assert places.enter(Guest(), "10.0.0.2") is Refusal.CONNECTION_LIMIT
    places.leave(there[0])
    come(places, "10.0.0.2")


@pytest.mark.parametrize("hosts", [("10.0.0.1", "10.0.0.1"), ("::1", "127.0.0.5"), ("fe80::1", "fe80::2")])
def test_one_address_has_its_share(hosts):
    places = TcpPlaces(100, 2)
    come(places, hosts[0], 2, known=True)
    assert places.enter(Guest(), hosts[1]) is Refusal.ADDRESS_LIMIT
    come(places, "10.9.9.9", 2)


def test_at_the_share_of_an_address_its_own_give_way_and_no_others():
    places = TcpPlaces(100, 3)
    others = come(places, "10.0.0.2", 3)
    own = come(places, "10.0.0.1", 3)
    come(places, "10.0.0.1")
    assert [one.gave_way for one in own] == [True, False, False]
    assert not any(one.gave_way for one in others)


def test_all_that_leave_leave_nothing():
    places = TcpPlaces(10, 10)
    for guest in [*come(places, "10.0.0.1", 3), *come(places, "10.0.0.2", 2, known=True)]:
        places.leave(guest)
        places.leave(guest)
        places.know(guest)
    assert (len(places), list(places), dict(places._number_of), places._unknown) == (0, [], {}, {})
