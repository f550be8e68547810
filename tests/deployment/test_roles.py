"""The roles of ``docs/deployment/postgresql/``: each may do what it is for, and no more."""

from __future__ import annotations

import os
import re

import psycopg2
import pytest

from streams import registry
from streams.reading.possible_positions import possible_positions
from tests.deployment.places import FILES, do_the_whole_work
from tests.support.session import PROJECT

OURS = "relnamespace = 'public'::regnamespace AND relowner = current_user::regrole"


def test_the_sites_role_does_the_whole_work(site):
    """Appending, storing rooms, purging, archives, mending, staging; nothing of it needs the owner."""
    do_the_whole_work({**os.environ, "DATABASE_URL": site.url()})


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE events_event",
        "ALTER TABLE events_event ADD COLUMN more text",
        "TRUNCATE auth_user",
        "CREATE INDEX ON events_event (sender)",
        "CREATE TRIGGER t BEFORE INSERT ON events_event FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "DROP FUNCTION state_full_state(bigint)",
        "CREATE SCHEMA other",
        "CREATE ROLE other",
        "CREATE DATABASE other",
        "SET ROLE {name}_owner",
        "SELECT rolpassword FROM pg_authid",
        "SELECT pg_read_file('/etc/passwd')",
        "COPY auth_user TO PROGRAM 'cat'",
    ],
)
def test_the_sites_role_changes_no_table_and_no_role(site, statement):
    with site.session() as cursor, pytest.raises(psycopg2.Error) as refused:
        cursor.execute(statement.format(name=site.name))
    assert refused.value.pgcode in ("42501", "42883"), refused.value  # not allowed


def test_the_sites_role_has_these_rights_on_every_table_and_no_others(site):
    with site.session("replsite_owner") as cursor:
        cursor.execute(
            f"""SELECT DISTINCT relkind::text, string_agg(privilege_type, ' ' ORDER BY privilege_type)
            FROM pg_class, aclexplode(relacl) WHERE grantee = %s::regrole AND {OURS} AND relkind IN ('r', 'v', 'S')
            GROUP BY oid, relkind""",
            [site.name],
        )
        assert set(cursor.fetchall()) == {
            ("r", "DELETE INSERT SELECT UPDATE"), ("v", "DELETE INSERT SELECT UPDATE"), ("S", "SELECT USAGE")
        }  # fmt: skip
        cursor.execute(f"SELECT count(*) FROM pg_class WHERE {OURS} AND relkind IN ('r', 'v', 'S') AND relacl IS NULL")
        assert cursor.fetchone() == (0,)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM auth_user",
        "SELECT * FROM django_session",
        "SELECT * FROM django_admin_log",
        "SELECT * FROM pipeline_job",
        "INSERT INTO events_room DEFAULT VALUES",
        "UPDATE streams_streamposition SET position = 0",
        "DELETE FROM events_event",
        "CREATE TABLE mine (id int)",
        "CREATE TEMPORARY TABLE mine (id int)",
        "SELECT nextval('streams_cacheinvalidation_seq')",
        "SELECT lo_from_bytea(0, 'fills the disk')",
        "SELECT lo_create(0)",
        "SELECT lo_creat(-1)",
        "SELECT pg_logical_emit_message(false, 'x', 'fills the disk')",
    ],
)
def test_the_reader_reads_no_more_and_writes_nothing(site, statement):
    with site.session("replsite_reader") as cursor:
        with pytest.raises(psycopg2.Error) as refused:
            cursor.execute(statement)
        assert refused.value.pgcode in ("42501", "42P01"), refused.value


def test_the_reader_believes_no_position_above_the_sequence(site):
    """Without the right to read the sequences it would take any number for a position, and pass over the facts below."""
    streams = [stream for stream in registry.all_streams() if not stream.declaration.in_memory]
    with site.session("replsite_owner") as cursor:
        for stream in streams:
            cursor.execute(
                "INSERT INTO streams_streamposition (stream, instance_name, position) VALUES (%s, 'wrong', %s)",
                [stream.name, 10**9 * stream.sign],
            )
    try:
        with site.session("replsite_reader") as cursor:
            found = possible_positions(cursor, [stream.name for stream in streams])
        assert {name: at["wrong"].position < 10**9 for name, at in found.items()} == {s.name: True for s in streams}
    finally:
        with site.session("replsite_owner") as cursor:
            cursor.execute("DELETE FROM streams_streamposition WHERE instance_name = 'wrong'")


def test_the_reader_reads_what_the_pages_for_other_services_ask_for(site):
    pages = [
        PROJECT / "docs/how-to" / name
        for name in ("use-the-models-from-another-service.md", "read-rooms-from-another-service.md")
    ]
    asked = set()
    for page in pages:
        text = page.read_text()
        asked |= set(
            re.findall(r"`([a-z]+_[a-z]+)`", re.search(r"## What the role must(.*?)\n## |$", text, re.S)[1] or "")
        )
        asked |= {table for line in re.findall(r"GRANT SELECT ON (.*?) TO", text) for table in line.split(", ")}
    assert len(asked) > 15
    with site.session("replsite_reader") as cursor:
        for table in asked:
            cursor.execute(f"SELECT * FROM {table} LIMIT 1")


def test_nobody_else_may_connect(site):
    with site.session("replsite_owner") as cursor:
        cursor.execute("SELECT datacl::text FROM pg_database WHERE datname = current_database()")
        (rights,) = cursor.fetchone()
        assert not re.search(r"[{,]=", rights), rights  # PUBLIC


def test_the_page_tells_of_no_role_that_is_not_made():
    made = set(re.findall(r"CREATE ROLE (\w+)", (FILES / "postgresql/roles.sql").read_text()))
    named = set(re.findall(r"postgres://(\w+):", "".join(path.read_text() for path in FILES.glob("*.env"))))
    assert named < made == {"replsite", "replsite_owner", "replsite_reader"}
