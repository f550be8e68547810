"""Limits of connections that fit into the open files a process may have."""

from __future__ import annotations

import pytest

from streams.replication.transport.descriptors import OWN_DESCRIPTORS, fitted
from streams.replication.transport.tcp_scope import ListenerLimits

LIMITS = ListenerLimits(connections=5_000, of_address=2_500)


@pytest.mark.parametrize("descriptors", [2, 64, 1_000, 1_024, 4_096, 5_999])
def test_all_connections_fit_and_keep_their_measure(descriptors):
    found = fitted(LIMITS, descriptors)
    assert 0 < found.connections <= descriptors - min(OWN_DESCRIPTORS, descriptors // 2)
    assert found.of_address == pytest.approx(found.connections / 2, abs=1)
    assert found.of_address > 0


def test_enough_changes_nothing_and_no_limit_stays_none():
    assert fitted(LIMITS, 6_000) == LIMITS
    assert fitted(ListenerLimits(of_address=0), 1_024).of_address == 0
