"""Snapshots that Spark's executors read in outlast a server that ends transactions in which nothing happens."""

from __future__ import annotations

import io
from contextlib import contextmanager

import pytest

from events.models import Event
from pipeline.archive import write
from pipeline.export import write_tables as export
from tests.integration.events.test_purging import middle
from tests.integration.pipeline.test_restore import stored
from tests.pipeline.test_archive_on_spark import job
from tests.support.exporting import run_export
from tests.support.impatient_server import impatient, wait_for_the_limit

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def slow_start(settings, monkeypatch):
    """Spark starts for longer than the server waits, in a job that has its snapshot already."""
    settings.REPLSITE_SERVER_NAME = "nobody.test"
    for module in (write, export):
        monkeypatch.setattr(module, "site_session", slowly(module.site_session))
    with impatient():
        yield


def slowly(session):
    @contextmanager
    def late(*arguments, **named):
        with session(*arguments, **named) as spark:
            wait_for_the_limit()
            yield spark

    return late


def test_an_export(spark, tmp_path):
    stored("v10_rejected")
    summary = run_export(tmp_path, {}, stream=io.StringIO())
    assert summary["tables"]["events"]["rows"] == Event.objects.count() > 0


def test_an_archive_before_a_purge(spark, tmp_path):
    room_id = stored("v10_rejected")
    cut = f"t{middle(room_id, 0.7)}-0"
    outcome = job("purge history", room=room_id, before_token=cut, archive=str(tmp_path), spark=True)
    assert outcome["archive"]["events"] == outcome["deleted"] + outcome["became_outliers"] > 0
