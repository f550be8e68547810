"""``manage.py doctor`` beside databases of both schema versions, read by the role that its page makes."""

from __future__ import annotations

import json
import os
import re
import shlex
from contextlib import ExitStack, closing, contextmanager

import psycopg2
import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class

from pipeline.doctor.check_rooms import check_in_snapshot
from pipeline.doctor.report import REASONS, Reason
from pipeline.doctor.server_database import READ, server_database
from pipeline.doctor.server_rooms import Context
from script.demonstration import Demo
from tests.support.room_data import ROOM_NAMES
from tests.support.session import PROJECT
from tests.support.synapse_database import postgresql_database

pytestmark = pytest.mark.django_db(transaction=True)
PAGE = (PROJECT / "docs" / "how-to" / "doctor.md").read_text()
ROOMS = ["v9_restricted", "v10_gap", "v10_rejected", "v12_power_fork"]
BOTH = pytest.mark.parametrize("schema", [63, 94])
FIRST = "!AdDyTeelxsdAQRLMhT:localhost:19201"


@contextmanager
def server(database_url, *damage, schema=94, rooms=ROOMS, granted=True):
    """Yields the URL with which the page's role reads a server's database, after some statements of ``damage``."""
    role = f"reader_{os.getpid()}"
    sql = re.search(r"```sql\n(.*?)```", PAGE, re.DOTALL)[1].replace("reader", role)
    with postgresql_database(database_url, rooms, answers=True, schema=schema) as url:
        with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            for statement in damage:
                cursor.execute(statement)
            cursor.execute(sql if granted else sql.partition("DO $$")[0])
            cursor.execute("ANALYZE")
        try:
            yield re.sub(r"//[^@/]*@", f"//{role}:change%20me@", url)
        finally:
            with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
                cursor.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def examine(capsys, url, *options):
    """Returns (exit status, the report)."""
    status = 0
    try:
        call_command("doctor", url, "--json", *options)
    except SystemExit as exited:
        status = exited.code
    return status, json.loads(capsys.readouterr().out)


def reasons(report):
    return sorted({finding["reason"] for finding in report["findings"]})


@BOTH
def test_a_healthy_server_gives_no_alarm(database_url, capsys, schema):
    with server(database_url, schema=schema) as url:
        status, report = examine(capsys, url, "--quick")
    assert (status, report["findings"], report["well"], report["schema"]) == (0, [], True, schema)
    assert report["left_out"] == []
    verdicts = {state["stream"]: state["verdict"] for state in report["streams"]}
    assert verdicts["events"] == verdicts["backfill"] == verdicts["state groups"] == "ok"
    assert ("device_lists_stream" in verdicts) == (schema == 94)
    assert report["rooms_total"] == len(report["rooms"]) == len(ROOMS) and report["empty_rooms"] == 0
    assert report["groups"]["unreferenced"] == 0 and report["groups"]["rows_per_event"] > 0.5
    assert {room["events"] for room in report["rooms"]} == {37, 139, 65, 279}
    assert all(
        room["bytes"] == room["event_bytes"] + room["json_bytes"] + room["state_bytes"] for room in report["rooms"]
    )


def test_sequences_that_are_behind_are_found_all_at_once_and_the_statements_mend_them(database_url, capsys):
    damage = ["SELECT setval('events_stream_seq', 5)", "SELECT setval('receipts_sequence', 8)"]
    damage += ["SELECT setval('events_backfill_stream_seq', 1)", "SELECT setval('device_lists_sequence', 3)"]
    damage += ["INSERT INTO device_lists_stream VALUES (4, '@u:s', 'D', 'master')"]
    damage += ["INSERT INTO stream_positions VALUES ('to_device', 'master', 40)"]
    with server(database_url, *damage) as url, closing(psycopg2.connect(as_owner(url, database_url))) as owner:
        status, report = examine(capsys, url, "--quick")
        found = {finding["where"]: finding for finding in report["findings"]}
        assert status == 1 and {*found} == {"events", "receipts", "backfill", "device_lists_stream", "to_device"}
        assert found["to_device"]["reason"] == "sequence-behind-position"
        assert found["device_lists_stream"]["reason"] == "sequence-behind-table"
        with owner, owner.cursor() as cursor:
            for finding in found.values():
                cursor.execute(finding["fix"].partition("run: ")[2])
        assert examine(capsys, url, "--quick")[0] == 0


def as_owner(url, database_url):
    return f"{database_url.rpartition('/')[0]}/{url.rpartition('/')[2]}"


def test_a_position_that_is_null_counts_for_nothing(database_url, capsys):
    null = [
        "ALTER TABLE stream_positions ALTER stream_id DROP NOT NULL",
        "UPDATE stream_positions SET stream_id = NULL",
    ]
    with server(database_url, *null) as url:
        assert examine(capsys, url, "--quick")[0] == 0


def test_piled_up_extremities_orphaned_groups_and_empty_rooms_are_found(database_url, capsys):
    damage = [
        f"INSERT INTO event_forward_extremities SELECT 'x' || n, '{FIRST}' FROM generate_series(1, 20) n",
        f"INSERT INTO state_groups SELECT 100000 + n, '{FIRST}', 'x' FROM generate_series(1, 400) n",
        f"INSERT INTO state_groups_state SELECT 100000 + n, '{FIRST}', 't', '', 'x' FROM generate_series(1, 400) n",
        "INSERT INTO state_group_edges SELECT 100001 + n, 100000 + n FROM generate_series(1, 399) n",
        "INSERT INTO state_groups VALUES (200000, '!gone:s', 'x')",
        "SELECT setval('state_group_id_seq', 200000)",
        f"DELETE FROM local_current_membership WHERE room_id <> '{FIRST}'",
    ]
    with server(database_url, *damage) as url:
        status, report = examine(capsys, url, "--quick")
    assert status == 1
    assert reasons(report) == ["extremities-pile-up", "groups-of-deleted-rooms", "groups-unreferenced"]
    assert [found["room_id"] for found in report["piled_up"]] == [FIRST] and report["piled_up"][0]["extremities"] > 20
    assert report["groups"]["unreferenced"] == 401 and report["groups"]["unreferenced_rows"] == 400
    assert report["empty_rooms"] == len(ROOMS) - 1
    freed = {remedy["subject"]: remedy["bytes"] for remedy in report["remedies"]}
    others = sum(room["bytes"] for room in report["rooms"] if room["room_id"] != FIRST)
    assert freed["delete the 3 rooms nobody of this server is in"] == others
    assert freed["delete the 401 state groups that no event needs"] > 0


def test_what_a_role_may_not_read_or_a_version_has_not_is_left_out_with_a_word(database_url, capsys):
    grant = "GRANT SELECT ON schema_version, schema_compat_version, events, event_json, rooms, rejections TO PUBLIC"
    with server(database_url, "DROP TABLE stream_positions", grant, granted=False) as url:
        status, report = examine(capsys, url, "--quick")
    left = "\n".join(report["left_out"])
    assert status == 0 and report["groups"] is None and len(report["rooms"]) == len(ROOMS)
    assert "stored positions: this database has no table stream_positions" in left
    assert "GRANT SELECT (state_group, room_id, type, state_key, event_id) ON state_groups_state" in left
    assert "GRANT SELECT ON SEQUENCE events_stream_seq" in left


def test_a_table_that_somebody_has_locked_holds_nothing_up(database_url, capsys, monkeypatch):
    monkeypatch.setattr("pipeline.doctor.server_database._LOCK_SECONDS", 0.1)
    with (
        server(database_url) as url,
        closing(psycopg2.connect(as_owner(url, database_url))) as other,
        other.cursor() as cursor,
    ):
        cursor.execute("LOCK TABLE state_groups_state")
        status, report = examine(capsys, url, "--quick")
    assert status == 0 and report["rooms"] and report["groups"] is None
    assert any("state by room" in sentence and "lock" in sentence for sentence in report["left_out"])


def test_a_large_table_is_sampled_and_the_report_says_so(database_url, capsys, monkeypatch):
    monkeypatch.setattr("pipeline.doctor.sizes._PAGES", 20)
    monkeypatch.setattr("pipeline.doctor.sizes._GROUPS_FOLLOWED", 100)
    damage = [
        f"INSERT INTO state_groups SELECT 100000 + n, '{FIRST}', 'x' FROM generate_series(1, 400) n",
        "SELECT setval('state_group_id_seq', 200000)",
    ]
    with server(database_url, *damage) as url:
        _, report = examine(capsys, url, "--quick")
    assert 0 < report["sampled"]["event_json"] < 1
    assert report["groups"]["is_estimated"]
    assert 250 < report["groups"]["unreferenced"] < 550


def test_the_report_is_one_file_without_the_password(database_url, capsys, tmp_path):
    with server(
        database_url, "SELECT setval('events_stream_seq', 5)", "UPDATE room_stats_state SET name = '<b>&'"
    ) as url:
        _, report = examine(capsys, url, "--quick", "--html", str(tmp_path / "report.html"))
        with pytest.raises(SystemExit):
            call_command("doctor", url, "--quick")
    page, text = (tmp_path / "report.html").read_text(), capsys.readouterr().out
    for shown in (page, text, json.dumps(report)):
        assert "change" not in shown and "setval(" in shown and "sequence-behind-position" in shown
    assert not re.search(r"(src|href)=|@import|url\(", page)
    assert "&lt;b&gt;&amp;" in page and "<b>&" not in page
    assert f"State of {report['snapshot_at'][:10]}T" in page


@pytest.mark.parametrize("url", ["synapse.db", "postgresql://localhost:1/none", "postgresql://u:p@ss/@h/db"])
def test_unusable_databases_are_refused_with_status_2(url):
    with pytest.raises(CommandError) as refused:
        call_command("doctor", url)
    assert refused.value.returncode == 2 and "p@ss" not in str(refused.value)


def test_a_database_that_is_no_synapse_is_refused(database_url):
    with pytest.raises(CommandError, match="not the database of a Synapse server") as refused:
        call_command("doctor", database_url)
    assert refused.value.returncode == 2


def test_the_page_grants_what_is_read_and_no_more():
    granted = dict(re.findall(r"\('(\w+)', '([\w ]+)'\)", PAGE))
    assert {table: tuple(columns.split()) for table, columns in granted.items()} == {**READ}


# --- rooms ------------------------------------------------------------------------------------------------------------

ROOM = "!kTJHILKOrCzmAEWoHP:localhost:19201"
#: A row of the room in the middle of its history.
NTH_EVENT = (
    f"SELECT event_id FROM events WHERE room_id = '{ROOM}' AND NOT outlier ORDER BY stream_ordering OFFSET %d LIMIT 1"
)
NTH_GROUP = f"SELECT id FROM state_groups WHERE room_id = '{ROOM}' ORDER BY id OFFSET 60 LIMIT 1"
NTH_ENTRY = (
    f"SELECT ctid FROM state_groups_state WHERE room_id = '{ROOM}' AND type = 'm.room.member' "
    "ORDER BY state_group OFFSET 60 LIMIT 1"
)
DAMAGE = {
    "current-state-differs": f"DELETE FROM current_state_events WHERE room_id = '{ROOM}' AND type = 'm.room.join_rules'",
    "membership-differs": f"""UPDATE current_state_events SET membership = 'ban' WHERE event_id = (
        SELECT min(event_id) FROM current_state_events WHERE room_id = '{ROOM}' AND membership = 'join')""",
    "no-extremity": f"DELETE FROM event_forward_extremities WHERE room_id = '{ROOM}'",
    "extremity-referred-to": f"INSERT INTO event_forward_extremities SELECT event_id, '{ROOM}' FROM ({NTH_EVENT % 50}) e",
    "extremity-unknown": f"INSERT INTO event_forward_extremities VALUES ('$nothing', '{ROOM}')",
    "extremity-missing": f"""DELETE FROM event_forward_extremities WHERE event_id = (
        SELECT e.event_id FROM event_forward_extremities x JOIN events e USING (event_id)
        WHERE x.room_id = '{ROOM}' ORDER BY e.stream_ordering DESC LIMIT 1)""",
    "extremity-not-accepted": f"""INSERT INTO event_forward_extremities SELECT event_id, room_id FROM event_json
        WHERE room_id = '{ROOM}' AND internal_metadata LIKE '%"soft_failed": true%' LIMIT 1""",
    "state-differs": f"DELETE FROM state_groups_state WHERE ctid = ({NTH_ENTRY})",
    "entry-misplaced": f"""UPDATE state_groups_state SET event_id = (
        SELECT min(event_id) FROM state_events WHERE room_id = '{ROOM}' AND type = 'm.room.create') WHERE ctid = ({NTH_ENTRY})""",
    "entry-unknown": f"UPDATE state_groups_state SET event_id = '$nothing' WHERE ctid = ({NTH_ENTRY})",
    "group-broken": f"DELETE FROM state_groups WHERE id = ({NTH_GROUP})",
    "group-missing": f"DELETE FROM event_to_state_groups WHERE event_id = ({NTH_EVENT % 60})",
    "event-without-json": f"DELETE FROM event_json WHERE event_id = ({NTH_EVENT % 60})",
}
WALK = ["v10_visibility_walk"]
SMALL = [name for name in ROOM_NAMES if name != "large_v10"]


@BOTH
def test_the_rooms_of_a_healthy_server_are_what_its_events_say(database_url, capsys, schema):
    with server(database_url, schema=schema, rooms=SMALL) as url:
        status, report = examine(capsys, url)
    assert (status, report["findings"], report["left_out"]) == (0, [], [])
    checked = report["checked"]
    assert (checked["rooms"], checked["events"], checked["remarks"]) == (len(SMALL), 1962, {})
    assert checked["groups"] == 1500 and checked["rows"] == report["groups"]["rows"]
    assert 0.5 < checked["rows_needed"] / checked["rows"] < 1.1


@pytest.mark.parametrize("reason", DAMAGE)
def test_planted_damage_is_found_with_its_event_and_rule(database_url, capsys, reason):
    with server(database_url, DAMAGE[reason], rooms=WALK) as url:
        status, report = examine(capsys, url)
    found = [finding for finding in report["findings"] if finding["reason"] == reason]
    assert status == 1 and found, reasons(report)
    for finding in found:
        assert finding["where"] == ROOM and finding["rule"] and finding["fix"]
        assert finding["event_id"] or reason == "group-broken"
    assert report["checked"]["remarks"] == {}


def test_a_wrong_entry_is_reported_where_it_begins_not_at_all_events_above_it(database_url, capsys):
    with server(database_url, DAMAGE["state-differs"], rooms=WALK) as url:
        _, report = examine(capsys, url)
    assert 1 <= report["found"] <= 6
    first = report["findings"][0]
    assert first["key"].startswith("m.room.member @") and {first["stored"], first["computed"]} != {None}


def test_an_edge_that_is_stored_twice_costs_nothing(database_url, capsys):
    """Older servers have such rows. Each hop to the group below would double the rows of its state."""
    twice = [
        "DROP INDEX IF EXISTS state_group_edges_unique_idx",
        "INSERT INTO state_group_edges TABLE state_group_edges",
    ]
    with server(database_url, *twice, DAMAGE["state-differs"], rooms=WALK) as url:
        _, report = examine(capsys, url)
    assert 1 <= report["found"] <= 6


def test_an_event_without_a_sender_ends_no_report(database_url, capsys):
    with server(database_url, DAMAGE["extremity-missing"], "UPDATE events SET sender = NULL", rooms=WALK) as url:
        _, report = examine(capsys, url)
    assert report["left_out"] == [] and "extremity-missing" in reasons(report)


def test_a_room_that_was_joined_over_federation_has_states_that_were_given(database_url, capsys):
    told = f"SELECT event_id FROM events WHERE room_id = '{ROOM}' ORDER BY stream_ordering LIMIT 60"
    joined = [
        f"CREATE TABLE told AS {told}",
        "DELETE FROM event_to_state_groups WHERE event_id IN (SELECT event_id FROM told)",
        "UPDATE events SET outlier = true WHERE event_id IN (SELECT event_id FROM told)",
    ]
    with server(database_url, *joined, rooms=WALK) as url:
        status, report = examine(capsys, url)
    assert (status, report["findings"]) == (0, []) and report["checked"]["given_states"] > 0
    with server(database_url, *joined, DAMAGE["current-state-differs"], rooms=WALK) as url:
        assert reasons(examine(capsys, url)[1]) == ["current-state-differs"]


def test_a_room_that_all_local_users_left_has_no_current_state(database_url, capsys):
    left = [f"DELETE FROM current_state_events WHERE room_id = '{ROOM}'"]
    gone = f"UPDATE local_current_membership SET membership = 'leave' WHERE room_id = '{ROOM}'"
    with server(database_url, *left, gone, rooms=WALK) as url:
        status, report = examine(capsys, url)
        assert status == 0 and report["empty_rooms"] == 1 and len(report["checked"]["remarks"]) == 1
    with server(database_url, *left, rooms=WALK) as url:
        assert reasons(examine(capsys, url)[1]) == ["current-state-differs"]


def test_a_room_whose_state_is_on_its_way_is_left_alone(database_url, capsys):
    damage = [PARTIAL, DAMAGE["state-differs"], DAMAGE["current-state-differs"]]
    with server(
        database_url, *damage, "UPDATE events SET origin_server_ts = extract(epoch FROM now()) * 1000", rooms=WALK
    ) as url:
        status, report = examine(capsys, url)
    assert status == 0 and report["checked"]["remarks"] == {"rooms whose state the server has not got yet": 1}


PARTIAL = f"INSERT INTO partial_state_rooms (room_id) VALUES ('{ROOM}')"


def test_a_room_whose_state_does_not_come_is_found(database_url, capsys):
    """Otherwise a room that no other server answers for would be left out of each report, for ever."""
    with server(database_url, PARTIAL, rooms=[*WALK, "v9_restricted"]) as url:
        status, report = examine(capsys, url)
    (found,) = report["findings"]
    assert (status, found["reason"], found["where"]) == (1, "state-overdue", ROOM)
    assert report["left_out"] == [] and report["checked"]["remarks"] == {
        "rooms whose state the server has not got yet": 1
    }


def test_a_room_whose_state_has_come_is_checked_again(database_url, capsys):
    come = "DELETE FROM partial_state_rooms"
    with server(database_url, PARTIAL, come, DAMAGE["state-differs"], rooms=WALK) as url:
        status, report = examine(capsys, url)
    assert status == 1 and "state-differs" in reasons(report) and report["checked"]["remarks"] == {}


def test_a_state_that_came_before_its_prev_events_is_no_alarm(database_url, capsys):
    """The server was given the state at an event, which nothing builds on, and got the event's prev events later."""
    fork = ["v10_power_fork"]
    given = """CREATE TABLE given AS SELECT event_id, json::json -> 'prev_events' ->> 0 AS prev FROM event_json x
        WHERE internal_metadata LIKE '%"soft_failed": true%'
        AND NOT EXISTS (SELECT FROM event_json y WHERE y.json LIKE '%' || x.event_id || '%') LIMIT 1"""
    first = "SELECT min(id) FROM state_groups"
    state = f"UPDATE event_to_state_groups SET state_group = ({first}) WHERE event_id = (SELECT event_id FROM given)"
    late = "UPDATE events SET stream_ordering = -1000 WHERE event_id = (SELECT prev FROM given)"
    with server(database_url, given, state, rooms=fork) as url:
        assert reasons(examine(capsys, url)[1]) == ["state-differs"]
    with server(
        database_url, given, state, late, "SELECT setval('events_backfill_stream_seq', 1000)", rooms=fork
    ) as url:
        status, report = examine(capsys, url)
    assert (status, report["findings"]) == (0, [])
    assert sum(report["checked"]["remarks"].values()) == 1


def test_purged_history_is_no_alarm(database_url, capsys):
    """Messages below a place are gone, state events there are outliers, as after a purge."""
    place = f"SELECT stream_ordering FROM events WHERE event_id = ({NTH_EVENT % 90})"
    below = f"room_id = '{ROOM}' AND stream_ordering < ({place})"
    purged = [
        f"CREATE TABLE purged AS SELECT event_id FROM events WHERE {below}",
        "DELETE FROM event_to_state_groups WHERE event_id IN (SELECT event_id FROM purged)",
        "DELETE FROM events WHERE event_id IN (SELECT event_id FROM purged EXCEPT SELECT event_id FROM state_events)",
        "UPDATE events SET outlier = true WHERE event_id IN (SELECT event_id FROM purged)",
    ]
    with server(database_url, *purged, rooms=WALK) as url:
        status, report = examine(capsys, url)
    assert (status, report["findings"]) == (0, []) and report["checked"]["given_states"] > 0


def test_tasks_read_the_snapshot_that_the_report_is_of(database_url):
    with server(database_url, rooms=WALK) as url, server_database(url, 50) as database:
        with closing(psycopg2.connect(as_owner(url, database_url))) as owner, owner, owner.cursor() as cursor:
            cursor.execute(DAMAGE["current-state-differs"])
        assert database.rows("rooms", ("rooms",), "SELECT room_id FROM rooms") == [(ROOM,)]
        (found,) = check_in_snapshot(url, database.shared, Context("localhost:19201", frozenset()), [ROOM])
    assert found.findings == [] and found.events == 273


def test_only_the_named_rooms_are_computed_and_an_unknown_one_is_refused(database_url, capsys):
    with server(database_url, DAMAGE["current-state-differs"], rooms=[*WALK, "v9_restricted"]) as url:
        status, report = examine(capsys, url, "--rooms", FIRST)
        assert status == 0 and report["checked"]["rooms"] == 1
        status, report = examine(capsys, url, "--rooms", ROOM, FIRST)
        assert status == 1 and report["checked"]["rooms"] == 2
        with pytest.raises(CommandError, match="no events of the room '!x:y'") as refused:
            call_command("doctor", url, rooms=["!x:y"])
    assert refused.value.returncode == 2


def test_rooms_of_an_old_server_have_their_version_in_the_create_event(database_url, capsys):
    with server(database_url, "UPDATE rooms SET room_version = NULL", rooms=["v10_gap", "v12_power_fork"]) as url:
        status, report = examine(capsys, url)
    assert status == 0 and report["checked"]["remarks"] == {} and report["checked"]["events"] == 418


def test_rooms_of_an_unknown_version_are_counted(database_url, capsys):
    with server(database_url, "UPDATE rooms SET room_version = 'org.example.x'", rooms=["v10_gap"]) as url:
        status, report = examine(capsys, url)
    assert status == 0 and sum(report["checked"]["remarks"].values()) == 139


def test_the_page_explains_each_reason():
    told = re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)
    assert told == [str(reason) for reason in REASONS] == [str(reason) for reason in Reason]


def test_every_command_of_the_page_is_accepted():
    lines = re.findall(r"^    manage\.py (.*)$", PAGE, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        name, *arguments = shlex.split(line)
        assert load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(arguments)


def test_the_demo_shows_what_doctor_finds(database_url, tmp_path):
    (tmp_path / "log").mkdir()
    with ExitStack() as stack:
        report = Demo(tmp_path, "127.0.0.1:0", "127.0.0.1:0", stack).examine()
    assert report["checked"]["events"] == 310
    assert "m.room.join_rules" in (tmp_path / "doctor.html").read_text()
