"""The site's system checks, as a user meets them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.core.checks import run_checks
from django.db import connections
from django.test.utils import override_settings

from replsite.checks import check_databases, check_settings
from tests.support.session import PROJECT


def test_postgresql_passes_without_a_connection():
    assert check_databases() == []


def test_another_engine_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(type(connections["default"]), "vendor", "sqlite")
    (problem,) = check_databases()
    assert problem.id == "replsite.E001"
    assert "advisory locks" in problem.hint and "DATABASE_URL" in problem.hint
    assert "replsite.postgres.backend" in problem.hint


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("REPLSITE_PROXY_NETWORKS", ["localhost"]),
        ("REPLSITE_PROXY_NETWORKS", ["10.0.0.1/8"]),
        ("REPLSITE_HEALTH_SECONDS", 0.0),
        ("REPLSITE_HEALTH_SECONDS", float("nan")),
        ("REPLSITE_DISK_RESERVE_BYTES", -1),
        ("REPLSITE_BLOCKED_AFTER_SECONDS", 0.0),
        ("REPLSITE_STUCK_AFTER_SECONDS", float("nan")),
        ("REPLSITE_EXPECTED_WRITERS", ["web-1"]),
        ("REPLSITE_EXPECTED_WRITERS", {"caches": "web-1"}),
        ("REPLSITE_EXPECTED_WRITERS", {"cashes": ["web-1"]}),
        ("REPLSITE_EXPECTED_WRITERS", {"caches": ["two words"]}),
        ("REPLSITE_EXPECTED_WRITERS", {"caches": [7]}),
        ("REPLSITE_EXPECTED_WRITERS", {"caches": {"web-1": 0}}),
        ("REPLSITE_EXPECTED_WRITERS", {"caches": {"web-1": True}}),
        ("REPLSITE_READER_PERIODS", {"mailer": 0}),
        ("REPLSITE_READER_PERIODS", ["mailer"]),
        ("REPLSITE_JOB_PERIODS", {"censor": 0}),
        ("REPLSITE_JOB_PERIODS", {"censor": "daily"}),
        ("REPLSITE_JOB_PERIODS", ["censor"]),
        ("REPLSITE_JOB_PERIODS", {"censer": 86_400}),
    ],
)
def test_a_wrong_value_is_told_before_anything_runs(setting, value):
    with override_settings(**{setting: value}):
        (problem,) = check_settings()
    assert problem.id == "replsite.E002"
    assert setting in problem.msg and problem.hint


def test_the_site_as_it_ships_has_nothing_to_complain_of():
    with override_settings(DEBUG=False):
        assert run_checks() == []


@pytest.mark.parametrize(
    ("command", "status"), [(["check"], 1), (["migrate"], 2), (["append", "caches", "--count", "1"], 2)]
)
def test_sqlite_is_refused_before_a_command_uses_it(tmp_path, command, status):
    """By Django's commands with their own status, by ours as what somebody has to correct."""
    done = subprocess.run(
        [sys.executable, "manage.py", *command],
        cwd=PROJECT, env={**os.environ, "DATABASE_URL": f"sqlite:///{tmp_path}/no.sqlite3"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == status
    assert "replsite.E001" in done.stderr
