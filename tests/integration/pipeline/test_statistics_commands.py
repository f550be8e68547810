"""``purge statistics``: all is thrown away, and counted anew from the beginning."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import call_command
from django.db import connection

from pipeline.live.ledger import BatchOffsets, ledger_vectors, take_batch
from pipeline.live.statistics_table import STATISTICS
from pipeline.models import BatchLedger, RoomDay, RoomStatistics, ServerStatistics, UserDay
from pipeline.statistics.update import Figures, add_figures

pytestmark = pytest.mark.django_db

HOUR_MS = 1_800_000_000_000 // 3_600_000 * 3_600_000
FIGURES = Figures([HOUR_MS], ["!r"], [2], [1], [0], [0], [0], [0], [9], [HOUR_MS], [HOUR_MS], ["@a:site"])


@pytest.fixture
def filled():
    with connection.cursor() as cursor:
        take_batch(cursor, STATISTICS, BatchOffsets(3, {}, {"events": {"w": 9}}))
        add_figures(cursor, FIGURES, "site")


def purge(*arguments):
    said = io.StringIO()
    call_command("purge", "statistics", *arguments, stdout=said)
    return said.getvalue()


def rows():
    return {
        model._meta.model_name: model.objects.count() for model in (RoomStatistics, ServerStatistics, RoomDay, UserDay)
    }


def test_a_dry_run_tells_the_same_numbers_and_changes_nothing(filled):
    before = rows()
    foreseen = json.loads(purge("--dry-run", "--json"))
    assert rows() == before == foreseen["rows"]
    assert json.loads(purge("--json"))["rows"] == before
    assert not any(rows().values())


def test_counting_begins_anew(filled):
    assert "are deleted; manage.py pipeline run counts again" in purge()
    with connection.cursor() as cursor:
        assert ledger_vectors(cursor, STATISTICS) == {}
        assert take_batch(cursor, STATISTICS, BatchOffsets(0, {}, {"events": {"w": 9}}))
        add_figures(cursor, FIGURES, "site")
    assert RoomStatistics.objects.get().events == 2


def test_other_queries_stay_where_they_are(filled):
    BatchLedger.objects.create(query="feeds", batch_id=1, offsets={"events": {"w": 4}})
    purge()
    assert [ledger.query for ledger in BatchLedger.objects.all()] == ["feeds"]


def test_nothing_to_throw_away_leaves_no_trace():
    assert purge("--dry-run").startswith("0 rows")
    assert not BatchLedger.objects.exists()
