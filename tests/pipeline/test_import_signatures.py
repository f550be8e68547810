"""What an import believes: content by its hash, always; signatures where it is given keys."""

from __future__ import annotations

import base64
import io
import json
import sqlite3
from contextlib import closing

import pytest
from django.core.management import CommandError, call_command

from events.integrity.repair import check_room
from events.models import Event, EventJson
from events.sending.finish import finish_event
from pipeline.importing.job import ImportOptions, import_history
from pipeline.models import Job, JobState, QuarantinedLine
from streams.jobs.errors import UnusableArguments
from streams.jobs.run import run_job
from tests.pipeline.imports import run_import, write_lines
from tests.support.room_data import ROOMS, event_lines, stored_events
from tests.support.synapse_database import sqlite_file

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark")]
KEYS = ROOMS / "server_keys.json"
LIE = "I owe you 1000000"
NOT_OURS = base64.b64encode(bytes([7]) * 32).decode()


def lines(room="v9_restricted"):
    """The lines of a room as objects that may be changed."""
    return [json.loads(line) for line in event_lines(room)]


def messages(found):
    """Places of messages of which nobody's redaction took anything."""
    return [n for n, line in enumerate(found) if "body" in line["json"]["content"]]


def quarantined():
    return sorted(QuarantinedLine.objects.values_list("line", "reason"))


def texts():
    return b"".join(bytes(json) for json in EventJson.objects.values_list("json", flat=True))


# --- hashes -----------------------------------------------------------------------------------------------------------


def parquet(path, found):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"json": [json.dumps(line["json"]) for line in found]}
    columns |= {name: [line[name] for line in found] for name in ("event_id", "room_version", "stream_ordering")}
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("form", ["lines", "bare", "parquet"])
def test_content_that_does_not_fit_is_redacted_whatever_it_comes_in(tmp_path, form):
    found = lines()
    place = messages(found)[-1]
    found[place]["json"]["content"]["body"] = LIE
    path = tmp_path / "in"
    if form == "parquet":
        parquet(path, found)
    else:
        write_lines(path, *([line["json"] for line in found] if form == "bare" else found))
    outcome = run_import(path)
    assert (outcome.imported, outcome.quarantined, outcome.signatures) == (len(found), 0, "trusted")
    assert LIE.encode() not in texts()
    kept = json.loads(bytes(EventJson.objects.get(pk=found[place]["event_id"]).json))
    assert kept["content"] == {} and kept["signatures"] == found[place]["json"]["signatures"]
    assert check_room(found[0]["room_id"]).clean


@pytest.mark.parametrize("lie_first", [True, False])
def test_of_two_copies_the_one_that_fits_counts(tmp_path, lie_first):
    found = lines()
    place = messages(found)[-1]
    lie = json.loads(json.dumps(found[place]))
    lie["json"]["content"]["body"] = LIE
    copies = [lie, found[place]] if lie_first else [found[place], lie]
    outcome = run_import(write_lines(tmp_path / "in", *found[:place], *copies, *found[place + 1 :]))
    assert (outcome.imported, outcome.duplicates) == (len(found), 1)
    assert json.loads(bytes(EventJson.objects.get(pk=lie["event_id"]).json)) == found[place]["json"]


def test_new_events_of_a_room_that_is_here_are_redacted_too(tmp_path):
    found = lines()
    place = messages(found)[-1]
    run_import(write_lines(tmp_path / "first", *found[:place]))
    found[place]["json"]["content"]["body"] = LIE
    outcome = run_import(write_lines(tmp_path / "in", *found))
    assert outcome.quarantined == 0 and LIE.encode() not in texts()
    assert Event.objects.filter(event_id=found[place]["event_id"], outlier=False).exists()


# --- signatures -------------------------------------------------------------------------------------------------------


def test_real_rooms_are_verified_with_the_keys_of_their_servers(tmp_path):
    outcome = run_import(*(ROOMS / room / "events.jsonl.gz" for room in ("v9_restricted", "v12_power_fork")), keys=KEYS)
    assert outcome.quarantined == 0 and outcome.imported == outcome.read and outcome.signatures == "verified"
    job = Job.objects.get()
    assert job.summary["signatures"] == "verified" and job.arguments["keys"] == str(KEYS)


def test_what_is_not_signed_is_put_aside_and_the_rest_goes_on(tmp_path):
    found = lines("v10_visibility_walk")
    ends = messages(found)[-3:]
    found[ends[0]]["json"]["signatures"] = {}
    found[ends[1]]["json"]["origin_server_ts"] += 1
    del found[ends[1]]["event_id"]
    found[ends[2]]["json"]["content"]["body"] = LIE
    path = write_lines(tmp_path / "in", *found)
    outcome = run_import(path, keys=KEYS)
    assert quarantined() == [(ends[0] + 1, "bad-signature"), (ends[1] + 1, "bad-signature")]
    assert outcome.imported == len(found) - 2 and LIE.encode() not in texts()
    assert "not signed by 'localhost:" in QuarantinedLine.objects.first().detail


@pytest.mark.parametrize("told", [True, False])
def test_a_create_event_that_is_not_what_was_signed_begins_no_room(tmp_path, told):
    found = lines()
    assert found[0]["json"]["content"]["room_version"] == "9"
    found[0]["json"]["content"]["room_version"] = "8"
    given = [found[0]] if told else [line["json"] for line in found]
    path = write_lines(tmp_path / "in", *given)
    outcome = run_import(path, keys=KEYS)
    assert outcome.imported == 0 and {reason for _, reason in quarantined()} == {"unknown-room-version"}


def test_keys_that_lie_let_nothing_in(tmp_path):
    keys = json.loads(KEYS.read_bytes())
    lying = {server: dict.fromkeys(found, NOT_OURS) for server, found in keys.items()}
    renamed = {server: {f"{key_id}x": key for key_id, key in found.items()} for server, found in keys.items()}
    for content in (lying, {}, renamed):
        file = tmp_path / "keys.json"
        file.write_text(json.dumps(content))
        outcome = run_import(ROOMS / "v9_restricted" / "events.jsonl.gz", keys=file)
        assert (outcome.imported, outcome.quarantined) == (0, len(stored_events("v9_restricted")))


def test_a_key_that_ended_verifies_what_came_before(tmp_path):
    found = lines()
    times = sorted(line["json"]["origin_server_ts"] for line in found)
    until = times[len(times) // 2]
    ended = {
        server: {key_id: {"key": key, "valid_until_ts": until} for key_id, key in keys.items()}
        for server, keys in json.loads(KEYS.read_bytes()).items()
    }
    (tmp_path / "keys.json").write_text(json.dumps(ended))
    outcome = run_import(ROOMS / "v9_restricted" / "events.jsonl.gz", keys=tmp_path / "keys.json")
    assert outcome.quarantined == sum(moment > until for moment in times) > 0


@pytest.mark.parametrize("outlier", [True, False])
def test_a_third_partys_invite_is_judged_whatever_is_told_of_it(tmp_path, outlier):
    """Nobody's server need have signed it: the rules find what is signed in it."""
    found = lines()
    last = found[-1]["json"]
    signed = {"mxid": "@eve:e.test", "token": "t", "signatures": {}}
    parts = {
        "type": "m.room.member",
        "state_key": "@eve:e.test",
        "sender": found[0]["json"]["sender"],
        "room_id": last["room_id"],
        "content": {"membership": "invite", "third_party_invite": {"display_name": "eve", "signed": signed}},
        "auth_events": [line["event_id"] for line in found[:3]],
        "prev_events": last["prev_events"],
        "depth": last["depth"],
        "origin_server_ts": last["origin_server_ts"],
    }
    forged = finish_event(parts, "9")
    line = {"event_id": forged.event_id, "room_version": "9", "json": json.loads(forged.json), "outlier": outlier}
    line |= {"rejected_reason": None, "soft_failed": False, "stream_ordering": found[-1]["stream_ordering"] + 1}
    outcome = run_import(write_lines(tmp_path / "in", *found, line), keys=KEYS)
    assert outcome.quarantined == 0
    assert Event.objects.get(event_id=forged.event_id).rejected_reason is not None


def test_a_create_event_is_of_the_version_that_its_server_signed(tmp_path):
    found = lines()
    told = {**found[0], "room_version": "8"}
    outcome = run_import(write_lines(tmp_path / "in", told), keys=KEYS)
    assert outcome.imported == 0 and quarantined() == [(1, "unknown-room-version")]


# --- the command and jobs ---------------------------------------------------------------------------------------------


def command(*arguments):
    out, errors = io.StringIO(), io.StringIO()
    call_command("import_events", *map(str, arguments), stdout=out, stderr=errors)
    return json.loads(out.getvalue().splitlines()[-1])


@pytest.mark.parametrize("option", [[], ["--trust-signatures"], ["--keys", KEYS]])
def test_the_command_says_whether_it_trusts(capsys, option):
    summary = command(ROOMS / "v9_restricted" / "events.jsonl.gz", "--json", *option)
    assert list(summary) == ["read", "imported", "duplicates", "rejected", "quarantined", "rooms", "seconds"]
    assert summary["quarantined"] == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "Signatures:" in line]
    word = "verified" if "--keys" in option else "trusted"
    assert len(said) == 1 and f"Signatures: {word}" in said[0]
    assert Job.objects.get().summary["signatures"] == word


@pytest.mark.parametrize(
    "content, why",
    [
        (None, "no file"),
        ("", "cannot be used: no JSON"),
        ("[]", "object of servers"),
        ('{"a": {"x": "y"}}', "no public"),
    ],
)
def test_keys_that_cannot_be_used_are_status_2_before_anything_starts(tmp_path, content, why):
    if content is not None:
        (tmp_path / "keys").write_text(content)
    with pytest.raises(CommandError, match=why) as refused:
        command(ROOMS / "v9_restricted" / "events.jsonl.gz", "--keys", tmp_path / "keys")
    assert refused.value.returncode == 2 and not Job.objects.exists()


def test_both_are_too_much():
    with pytest.raises(CommandError, match="not allowed with"):
        command(ROOMS / "v9_restricted" / "events.jsonl.gz", "--trust-signatures", "--keys", str(KEYS))


def test_a_queued_import_names_its_keys_below_the_folder(tmp_path, settings):
    settings.REPLSITE_IMPORT_FOLDER = tmp_path
    write_lines(tmp_path / "in.jsonl", *lines())
    (tmp_path / "keys.json").write_text("{}")
    run_job("import_events", {"sources": ["in.jsonl"], "keys": "keys.json"}, stream=io.StringIO())
    assert Job.objects.get().summary["quarantined"] == len(lines())
    for keys in ("../keys.json", "/etc/hostname", "postgresql:///?service=x", 5):
        with pytest.raises(UnusableArguments, match=r"cannot be queued|name of a file"):
            run_job("import_events", {"sources": ["in.jsonl"], "keys": keys}, stream=io.StringIO())


def test_a_job_that_goes_on_with_other_keys_reads_anew(tmp_path):
    path = write_lines(tmp_path / "in", *lines())
    keys = tmp_path / "keys.json"
    keys.write_text("{}")

    def die(step):
        raise OSError(step)

    with pytest.raises(OSError, match="read"):
        import_history(
            ImportOptions([path], keys=keys, pause=lambda step: die(step) if step == "read" else None), io.StringIO()
        )
    assert Job.objects.get().state == JobState.FAILED
    keys.write_bytes(KEYS.read_bytes())
    outcome = run_import(path, keys=keys, resume=True)
    assert (outcome.imported, outcome.quarantined) == (len(lines()), 0) and Job.objects.count() == 1


def test_a_synapse_database_is_verified(tmp_path):
    found = stored_events("v9_restricted")
    path = sqlite_file(tmp_path / "synapse.db", ["v9_restricted"])
    with closing(sqlite3.connect(path)) as connection, connection:
        change = """UPDATE event_json SET json = replace(json, '"depth"', '"more": 1, "depth"') WHERE event_id = ?"""
        connection.execute(change, [found[-1]["event_id"]])
    outcome = run_import(path, keys=KEYS)
    assert outcome.quarantined == 0 and outcome.imported == len(found) and b'"more"' not in texts()
