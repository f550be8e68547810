"""``manage.py import_events``: what it prints where, and its exit status."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command

from pipeline.models import Job
from tests.pipeline.imports import write_lines
from tests.support.room_data import ROOMS, event_lines
from tests.support.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)
KEYS = ["read", "imported", "duplicates", "rejected", "quarantined", "rooms", "seconds"]


@pytest.fixture
def import_events(spark):
    """Run the command in this process: (exit status, stdout, stderr)."""

    def run(*arguments):
        out, errors = io.StringIO(), io.StringIO()
        try:
            call_command("import_events", *map(str, arguments), stdout=out, stderr=errors)
        except SystemExit as end:
            return end.code, out.getvalue(), errors.getvalue()
        return 0, out.getvalue(), errors.getvalue()

    return run


def test_all_well_is_status_0_and_the_last_line_is_the_summary(import_events):
    status, out, errors = import_events(ROOMS / "v9_restricted" / "events.jsonl.gz")
    summary = json.loads(out.splitlines()[-1])
    assert status == 0 and list(summary) == KEYS
    assert summary["read"] == summary["imported"] == len(event_lines("v9_restricted"))
    assert "not known" not in errors


def test_events_above_missing_ones_are_counted(import_events, tmp_path):
    path = write_lines(tmp_path / "in", *event_lines("v9_restricted")[5:])
    status, _, errors = import_events(path)
    assert status == 0 and "The state is not known at 32 of them" in errors


def test_where_nothing_is_told_the_rules_reject(import_events, tmp_path):
    told = [json.loads(line) for line in event_lines("v10_rejected")]
    path = write_lines(tmp_path / "in", *({key: line[key] for key in ("json", "room_version")} for line in told))
    _, out, _ = import_events(path, "--json")
    assert json.loads(out)["rejected"] == sum(line["rejected_reason"] is not None for line in told) == 6


def test_quarantine_is_status_1_and_says_where(import_events, tmp_path):
    path = write_lines(tmp_path / "in", *event_lines("v9_restricted"), b"oops")
    status, out, errors = import_events(path)
    summary = json.loads(out)
    assert status == 1 and summary["quarantined"] == 1
    assert summary["read"] == summary["imported"] + summary["duplicates"] + summary["quarantined"]
    assert f"{path}:38: not-json" in errors


def test_json_leaves_only_the_summary(import_events):
    _, out, errors = import_events(ROOMS / "v9_restricted" / "events.jsonl.gz", "--json")
    assert len(out.splitlines()) == 1 and errors == ""


@pytest.mark.parametrize(
    ("name", "why"), [("missing.jsonl", "Cannot read"), (".", "holds no .*parquet files. Name the files")]
)
def test_a_path_that_cannot_be_read_is_status_2_before_anything_starts(tmp_path, name, why):
    with pytest.raises(CommandError, match=why) as refused:
        call_command("import_events", str(tmp_path / name))
    assert refused.value.returncode == 2
    assert not Job.objects.exists()


def test_a_process_of_its_own_prints_the_summary_last(run_manage, tmp_path):
    path = write_lines(tmp_path / "in", *event_lines("v9_restricted"), b"oops")
    done = run_manage("import_events", str(path), timeout=2 * DEADLINE_SECONDS)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["quarantined"] == 1
    assert "read: 38 of 38 lines" in done.stderr
