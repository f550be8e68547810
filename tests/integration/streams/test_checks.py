"""System checks of the engine: each wrong setting has its own words and hint."""

from __future__ import annotations

from dataclasses import fields, replace
from unittest.mock import patch

import pytest
from django.core.checks import run_checks
from django.test import override_settings

from migrations import MIGRATION_MODULES
from streams import registry
from streams.catalog.declarations import CACHES
from streams.checks import (
    check_declarations,
    check_migration_modules,
    check_names_of_settings,
    check_settings,
    check_wire_settings,
)
from streams.conf import StreamSettings, stream_settings
from streams.core.declaration import Column, ColumnKind, FactTable


def ids(found: list) -> list[str]:
    return [message.id for message in found]


def test_this_site_is_well():
    assert not [message for message in run_checks() if str(message.id).startswith("streams.")]


@pytest.mark.parametrize("mapping", [{}, {**MIGRATION_MODULES, "streams": "elsewhere.migrations"}])
def test_forgotten_migrations_are_loud(mapping):
    with override_settings(MIGRATION_MODULES=mapping):
        found = check_migration_modules(None)
    assert found
    assert set(ids(found)) == {"streams.E001"}
    assert "from migrations import MIGRATION_MODULES" in found[0].hint


def test_apps_that_are_not_installed_need_no_mapping():
    with override_settings(MIGRATION_MODULES={"streams": "migrations.streams"}, INSTALLED_APPS=["streams"]):
        assert check_migration_modules(None) == []


@pytest.mark.parametrize("name", ["two words", "", "x" * 101])
def test_instance_name_that_cannot_travel(name):
    with override_settings(REPLSITE_WRITER=name):
        assert "streams.E002" in ids(check_settings(None))


def test_writer_name_that_cannot_travel():
    with override_settings(REPLSITE_WRITERS={"caches": ["a b"]}):
        assert ids(check_settings(None)) == ["streams.E002"]


def test_writers_of_an_unknown_stream():
    with override_settings(REPLSITE_WRITERS={"cashes": ["a"]}):
        found = check_settings(None)
    assert ids(found) == ["streams.E003"]
    assert "caches" in found[0].hint


@pytest.mark.parametrize("writers", [["caches"], {"caches": "web-1"}, {"caches": [1]}, {"caches": None}])
def test_writers_that_are_no_lists_of_names(writers):
    with override_settings(REPLSITE_WRITERS=writers):
        assert ids(check_settings(None)) == ["streams.E016"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("REPLSITE_WRITTER", "Did you mean REPLSITE_WRITER?"),
        ("REPLSITE_ARCHIVE_FOLDR", "Did you mean REPLSITE_ARCHIVE_FOLDER?"),
        ("REPLSITE_DATADIR", "Did you mean REPLSITE_DATA_DIR?"),
        ("REPLSITE_Q", "docs/reference/settings.md lists all."),
    ],
)
def test_a_setting_that_nothing_reads_is_named(name, meant):
    with override_settings(**{name: 1}, REPLSITE_INSTANCE="the former name", REPLSITE_MIGRATIONS={}):
        [message] = check_names_of_settings(None)
    assert message.id == "streams.W024" and name in message.msg and message.hint.startswith(meant)


NUMBERS = [one.name for one in fields(StreamSettings) if type(one.default) in (int, float)] + ["censor_after_days"]


@pytest.mark.parametrize("value", [-1, float("nan")])
@pytest.mark.parametrize("name", sorted(set(NUMBERS)))
def test_no_number_is_taken_as_it_comes(name, value):
    """A setting that is added and not checked fails here."""
    with override_settings(**{f"REPLSITE_{name.upper()}": value}):
        found = [*check_settings(None), *check_wire_settings(None)]
    assert [message for message in found if f"REPLSITE_{name.upper()}" in message.msg and message.hint]


def test_ping_timeout_below_the_interval():
    with override_settings(REPLSITE_PING_TIMEOUT_SECONDS=5.0, REPLSITE_PING_INTERVAL_SECONDS=5.0):
        assert ids(check_wire_settings(None)) == ["streams.E004"]


def with_tables(*tables: FactTable) -> list[str]:
    with patch.object(registry.get("caches"), "declaration", replace(CACHES, tables=tables)):
        return ids(check_declarations(None))


def test_declared_table_without_a_model():
    assert with_tables(*CACHES.tables, FactTable("nowhere", ())) == ["streams.E005"]


def test_declared_column_that_is_not_there():
    table = replace(CACHES.tables[0], columns=(Column("colour", ColumnKind.TEXT),))
    assert with_tables(table) == ["streams.E006"]


def test_settings_are_read_again_after_a_change():
    before = stream_settings().writer
    with override_settings(REPLSITE_WRITER="other"):
        assert stream_settings().writer == "other"
    assert stream_settings().writer == before


@override_settings(REPLSITE_RETENTION_SHORTEST_SECONDS=60.0, REPLSITE_RETENTION_LONGEST_SECONDS=30.0)
def test_rooms_must_have_a_lifetime_to_choose():
    assert [message.id for message in check_wire_settings(None)] == ["streams.E015"]


# --- the wire -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value", "found"),
    [
        ("REPLSITE_CONNECTION_LIMIT", 0, "streams.E010"),
        ("REPLSITE_HTTP_BODY_LIMIT_BYTES", -1, "streams.E010"),
        ("REPLSITE_SEND_STALL_LIMIT_SECONDS", 0.0, "streams.E010"),
        ("REPLSITE_WORKER_SILENCE_SECONDS", float("nan"), "streams.E010"),
        ("REPLSITE_LINE_LIMIT_BYTES", 20_000, "streams.W010"),
        ("REPLSITE_PLAIN_NETWORKS", ["10.1.2.3/24"], "streams.E011"),
        ("REPLSITE_WIRE_RIGHTS", {"w": {"streams": "events"}}, "streams.E034"),
        ("REPLSITE_RETENTION_DEFAULT_SECONDS", -1.0, "streams.E010"),
        ("REPLSITE_RETENTION_LONGEST_SECONDS", float("nan"), "streams.E010"),
        ("REPLSITE_CENSOR_AFTER_DAYS", -1.0, "streams.E010"),
        ("REPLSITE_TLS_SERVER_CA", "nowhere.pem", "streams.E012"),
    ],
)
def test_wire_settings_that_cannot_work_are_named(setting, value, found):
    with override_settings(**{setting: value}):
        [message] = check_wire_settings(None)
    assert message.id == found
    assert setting in message.msg
    assert message.hint


def test_half_of_tls_is_named(tmp_path):
    authorities = tmp_path / "ca.pem"
    authorities.touch()
    with override_settings(REPLSITE_TLS_CLIENT_CA=str(authorities)):
        assert ids(check_wire_settings(None)) == ["streams.W011"]
