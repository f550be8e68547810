"""Limits of connections that fit into the open files a process may have."""

from __future__ import annotations

import pytest

from streams.replication.transport.descriptors import OWN_DESCRIPTORS, fitted
from streams.replication.transport.http_limits import HttpBounds
from streams.replication.transport.tcp_scope import ListenerLimits

LIMITS = ListenerLimits(tcp_connections=5_000, tcp_of_address=2_500, http=HttpBounds(connections=2_000, of_address=500))


@pytest.mark.parametrize("descriptors", [64, 256, 300, 1_024, 4_096, 7_255])
def test_all_connections_fit_and_keep_their_measure(descriptors):
    found = fitted(LIMITS, descriptors)
    there = found.tcp_connections + found.http.connections
    assert 0 < there <= descriptors - min(OWN_DESCRIPTORS, descriptors // 2)
    assert found.tcp_connections == pytest.approx(2.5 * found.http.connections, abs=3)
    assert found.tcp_of_address == pytest.approx(found.tcp_connections / 2, abs=1)
    assert found.http.of_address == pytest.approx(found.http.connections / 4, abs=1)


def test_enough_changes_nothing_and_no_limit_stays_none():
    assert fitted(LIMITS, 7_256) == LIMITS
    found = fitted(ListenerLimits(tcp_of_address=0, http=HttpBounds(of_address=0)), 1_024)
    assert (found.tcp_of_address, found.http.of_address) == (0, 0)
