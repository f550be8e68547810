"""A connection that dies during COMMIT: the database's word decides, both ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import DatabaseError, InterfaceError, connection, transaction

from streams.writing.process import current_writer
from tests.support.cutting_proxy import Cut, CuttingProxy
from tests.support.waiting import wait_until
from tests.support.writing import append, ids, wait_for_linear

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    """This thread's Django connection goes through the proxy; the writer's own does not."""
    append()
    given = connection.get_connection_params()
    with CuttingProxy(given["host"], int(given["port"])) as proxy:
        connection.close()
        monkeypatch.setattr(
            connection, "get_connection_params", lambda: {**given, "host": "127.0.0.1", "port": proxy.port}
        )
        yield proxy
        connection.close()


@pytest.mark.parametrize("cut", [Cut.ANSWER, Cut.QUESTION])
def test_commit_that_nobody_heard_of(proxy: CuttingProxy, cut: Cut):
    before = ids()
    with pytest.raises((DatabaseError, InterfaceError)), transaction.atomic():
        taken = append(2)
        proxy.cut = cut
    proxy.cut = Cut.NOTHING
    tracker = current_writer().trackers["caches"]
    wait_until(lambda: not tracker.pending)
    committed = taken if cut is Cut.ANSWER else []
    assert ids() == before + committed
    assert tracker.take_counts()[1] == 2 - len(committed)
    wait_for_linear(taken[-1])
    wait_for_linear(append()[0])
