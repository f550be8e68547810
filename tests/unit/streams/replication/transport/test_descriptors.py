"""Limits of connections that fit into the open files a process may have."""

from __future__ import annotations

import pytest

from streams.replication.transport.descriptors import OWN_DESCRIPTORS, fitted
from streams.replication.transport.http_limits import HttpBounds
from streams.replication.transport.tcp_scope import ListenerLimits

LIMITS = ListenerLimits(connections=5_000, of_address=2_500), HttpBounds(connections=2_000, of_address=500)


@pytest.mark.parametrize("descriptors", [64, 256, 300, 1_024, 4_096, 7_255])
def test_all_connections_fit_and_keep_their_measure(descriptors):
    tcp, http = fitted(*LIMITS, descriptors)
    assert 0 < tcp.connections + http.connections <= descriptors - min(OWN_DESCRIPTORS, descriptors // 2)
    assert tcp.connections == pytest.approx(2.5 * http.connections, abs=3)
    assert tcp.of_address == pytest.approx(tcp.connections / 2, abs=1)
    assert http.of_address == pytest.approx(http.connections / 4, abs=1)


def test_enough_changes_nothing_and_no_limit_stays_none():
    assert fitted(*LIMITS, 7_256) == LIMITS
    tcp, http = fitted(ListenerLimits(of_address=0), HttpBounds(of_address=0), 1_024)
    assert (tcp.of_address, http.of_address) == (0, 0)
