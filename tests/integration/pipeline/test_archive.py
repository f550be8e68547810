"""Archives of rooms: that they hold what the database has, and that nothing is deleted on the word of a bad one."""

import io
import json
import os
import stat
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from events.models import Event, EventJson, ForwardExtremity
from events.operations import purge_history as purge_kind
from pipeline.archive import parts, write
from pipeline.archive.format import MANIFEST, PARTIAL, TABLES, digest_of, read_manifest
from pipeline.archive.parts import ArchivePart, read_batches, write_part
from pipeline.archive.read_parts import open_archive
from pipeline.archive.write import partial_archives
from pipeline.errors import ArchiveDamaged, ArchiveTooLarge
from pipeline.models import Job
from pipeline.source.shared_snapshot import in_snapshot
from state.models import StateGroup
from streams.db.driver import dsn
from streams.jobs.errors import UnusableArguments
from streams.jobs.folders import any_folder
from streams.jobs.run import queue_job, run_job
from tests.integration.events.test_purging import middle, talked_room
from tests.oracle.answers import parsed
from tests.support.full_disk import FULL, needs_full_disk
from tests.support.persisted_rooms import incoming, persist
from tests.support.stored_rooms import store_room

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _server(settings):
    settings.REPLSITE_SERVER_NAME = "nobody.test"


def archived(room_id, folder, **arguments):
    """The folder and the manifest of a new archive."""
    with any_folder():
        summary = run_job("archive", {"room": room_id, "folder": str(folder), **arguments}, stream=io.StringIO())
    path = Path(summary["folder"])
    return path, read_manifest(path)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def rows_of(path, manifest, table):
    return [row for file in manifest.of(table) for row in pq.read_table(path / file.name).to_pylist()]


def purge(what, *arguments):
    out = io.StringIO()
    call_command("purge", what, *arguments, "--json", stdout=out, stderr=io.StringIO())
    return json.loads(out.getvalue())


@pytest.mark.parametrize("name", ["v11_redactions", "v10_gap"])
def test_a_room_as_it_is(name, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "EVENTS_PER_FILE", 30)
    monkeypatch.setattr(write, "GROUPS_PER_FILE", 10)
    room_id = store_room(parsed(name)).room_id
    path, manifest = archived(room_id, tmp_path)
    events = rows_of(path, manifest, "event")
    assert len(manifest.of("event")) > 2 and len(manifest.of("group")) > 1
    places = [(row["topological_ordering"], row["stream_ordering"]) for row in events]
    assert places == sorted(places, reverse=True) and len(events) == Event.objects.filter(room_id=room_id).count()
    assert {row["event_id"]: row["json"] for row in events} == {
        j.event_id: bytes(j.json) for j in EventJson.objects.all()
    }
    assert manifest.rows("group") == StateGroup.objects.filter(room_id=room_id).count()
    assert {row["event_id"] for row in rows_of(path, manifest, "leaf")} == {
        extremity.event_id for extremity in ForwardExtremity.objects.all()
    }
    assert {file.name for file in manifest.files} | {MANIFEST} == set(names(path))


def test_only_its_owner_may_read_an_archive(tmp_path):
    room_id = store_room(parsed("v10_gap")).room_id
    folder = tmp_path / "new" / "archives"
    path, _ = archived(room_id, folder)
    assert {mode_of(one) for one in (folder.parent, folder, path)} == {0o700}
    assert {mode_of(file) for file in path.iterdir()} == {0o600}


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_all_of_an_archive_is_on_the_disk_before_anything_is_deleted(tmp_path, monkeypatch):
    """Its files, their names in its folder, the folder's name, and those of the folders above, in this order."""
    room_id = store_room(parsed("v10_gap")).room_id
    folder = tmp_path / "new" / "archives"
    settled, fsync, purge_events = [], os.fsync, purge_kind.purge_events

    def noted(descriptor):
        settled.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    def purged(*arguments, **named):
        settled.append("purge")
        return purge_events(*arguments, **named)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(purge_kind, "purge_events", purged)
    outcome = purge("history", room_id, "--before-token", f"t{middle(room_id, 0.7)}-0", "--archive", str(folder))
    final = Path(outcome["archive"]["folder"])
    partial = final.with_name(final.name + PARTIAL)
    *files, _ = settled[: settled.index(partial) + 1]
    assert {file.name for file in files} == {file.name for file in final.iterdir()}
    assert {file.parent for file in files} == {partial} and files[-1].name == MANIFEST
    after = settled[settled.index(partial) + 1 :]
    assert after[: after.index("purge")] == [folder, *folder.parents]


def test_every_column_of_an_event_is_archived():
    """A column that is added later must be added to archives, too."""
    columns = {field.column for field in Event._meta.concrete_fields} - {"received_at", "censored_at", "room_id"}
    assert columns <= set(TABLES["event"].columns)
    for table, model in {"group": "state_stategroup", "delta": "state_stategroupdelta", "room": "events_room"}.items():
        with connection.cursor() as cursor:
            cursor.execute("SELECT column_name FROM information_schema.columns WHERE table_name = %s", [model])
            found = {name for (name,) in cursor.fetchall()} - {"room_id", "content_generation"}
        assert found <= set(TABLES[table].columns), table


def test_history_has_the_groups_that_its_events_stand_on(tmp_path):
    room_id = store_room(parsed("v11_fork_walk")).room_id
    cut = middle(room_id, 0.3)
    path, manifest = archived(room_id, tmp_path, before_token=f"t{cut}-0")
    events, groups = rows_of(path, manifest, "event"), {row["id"]: row for row in rows_of(path, manifest, "group")}
    assert 0 < len(groups) < StateGroup.objects.count()
    assert {row["state_group"] for row in events} - {None} <= groups.keys()
    assert {row["prev_group"] for row in groups.values()} - {None} <= groups.keys()
    assert {row["state_group"] for row in rows_of(path, manifest, "delta")} <= groups.keys()
    assert all(row["topological_ordering"] < cut for row in events)
    assert manifest.rows("current") == 0 < manifest.rows("visibility")


def test_what_is_purged_is_what_is_archived(tmp_path):
    made = talked_room(8)
    cut = made.events[-1].depth
    foreseen = purge("history", made.room_id, "--before-token", f"t{cut}-0", "--delete-local", "--dry-run")
    outcome = purge(
        "history", made.room_id, "--before-token", f"t{cut}-0", "--delete-local", "--archive", str(tmp_path)
    )
    facts = outcome.pop("archive")
    assert {**foreseen, "dry_run": False} == outcome
    manifest = read_manifest(Path(facts["folder"]))
    assert manifest.rows("event") == outcome["deleted"] + outcome["became_outliers"] == facts["events"]


def test_what_comes_after_the_archive_is_not_purged_with_it(tmp_path, monkeypatch):
    made = talked_room(4)
    late = made.message(prev=[made.events[3]])
    plain = write._Archive.write

    def write_and_persist(self):
        manifest = plain(self)
        persist([incoming(late)])
        return manifest

    monkeypatch.setattr(write._Archive, "write", write_and_persist)
    cut = made.events[-2].depth
    assert late.depth < cut
    purge("history", made.room_id, "--before-token", f"t{cut}-0", "--delete-local", "--archive", str(tmp_path))
    assert EventJson.objects.filter(event_id=late.event_id).exists()
    assert not Event.objects.get(event_id=late.event_id).outlier
    monkeypatch.undo()
    assert purge("history", made.room_id, "--before-token", f"t{cut}-0", "--delete-local")["deleted"] == 1


def test_what_retention_takes_is_archived_room_by_room(tmp_path, settings):
    settings.REPLSITE_RETENTION_DEFAULT_SECONDS = 1
    rooms = [talked_room(3), talked_room(3, "!other:a.test")]
    foreseen = purge("retention", "--dry-run", "--archive", str(tmp_path))
    assert names(tmp_path) == []
    outcome = purge("retention", "--archive", str(tmp_path))
    assert {**foreseen, "dry_run": False} == outcome and outcome["rooms"] == 2
    manifests = [read_manifest(path) for path in tmp_path.iterdir()]
    assert {one.room_id for one in manifests} == {made.room_id for made in rooms}
    assert sum(one.rows("event") for one in manifests) == outcome["deleted"] + outcome["became_outliers"]
    purge("retention", "--archive", str(tmp_path))
    assert len(names(tmp_path)) == 2  # nothing to delete, nothing to archive


def test_a_purge_that_is_refused_writes_no_archive(tmp_path):
    made = talked_room(2)
    with pytest.raises(CommandError, match="without its last event"):
        purge("history", made.room_id, "--before-token", "t99999-0", "--archive", str(tmp_path))
    assert names(tmp_path) == []


# --- what can go wrong ------------------------------------------------------------------------------------------------


def test_a_file_that_differs_from_the_database_stops_the_purge(tmp_path, monkeypatch):
    made = talked_room(3)
    plain = parts._write

    def write_and_lose_a_row(path, table, batches):
        plain(path, table, batches)
        if table == "event":
            pq.write_table(pq.read_table(path).slice(1), path)

    monkeypatch.setattr(parts, "_write", write_and_lose_a_row)
    before = Event.objects.filter(outlier=False).count()
    with pytest.raises(CommandError, match="does not hold what the database has"):
        purge("history", made.room_id, "--before", made.events[-1].event_id, "--archive", str(tmp_path))
    assert (names(tmp_path), Event.objects.filter(outlier=False).count()) == ([], before)


@needs_full_disk
def test_a_full_disk_leaves_the_room_as_it_was(tmp_path, monkeypatch):
    made = talked_room(3)
    monkeypatch.setattr(ArchivePart, "__init__", _to_a_full_device(ArchivePart.__init__))
    before = Event.objects.filter(outlier=False).count()
    with pytest.raises(CommandError, match=r"The disk of .* is full: .*nothing was deleted"):
        purge("history", made.room_id, "--before", made.events[-1].event_id, "--archive", str(tmp_path))
    assert (names(tmp_path), Event.objects.filter(outlier=False).count()) == ([], before)
    monkeypatch.undo()
    assert purge("history", made.room_id, "--before", made.events[-1].event_id, "--archive", str(tmp_path))["archive"]


def _to_a_full_device(plain):
    def init(self, table, name, query):
        plain(self, table, str(FULL) if table == "event" else name, query)

    return init


def test_a_killed_archive_is_removed_by_the_next(tmp_path):
    made = talked_room(3)
    name = write._name(made.room_id)
    (tmp_path / f"{name}-1.partial").mkdir()
    (tmp_path / f"{name}-1.partial" / "event-00000.parquet").write_bytes(b"PAR1")
    (tmp_path / "others-2.partial").mkdir()
    path, _ = archived(made.room_id, tmp_path)
    assert partial_archives(tmp_path, made.room_id) == []
    assert names(tmp_path) == sorted([path.name, "others-2.partial"])


@pytest.mark.parametrize("table", ["room", "event", "delta"])
def test_a_flipped_bit_is_found(table, tmp_path):
    made = talked_room(3)
    path, manifest = archived(made.room_id, tmp_path)
    file = path / manifest.of(table)[0].name
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    with pytest.raises(ArchiveDamaged, match=file.name):
        open_archive(path)


def test_an_archive_that_no_restore_would_take_is_not_begun(tmp_path, monkeypatch):
    made = talked_room(1)
    monkeypatch.setattr(write, "MOST_FILES", 3)
    with pytest.raises(ArchiveTooLarge, match="at most 3 can be restored"):
        archived(made.room_id, tmp_path)
    assert names(tmp_path) == []


def test_a_manifest_is_sealed(tmp_path):
    made = talked_room(1)
    path, _ = archived(made.room_id, tmp_path)
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text.replace('"delete_local": false', '"delete_local": true'))
    with pytest.raises(ArchiveDamaged, match="not as it was written"):
        read_manifest(path)
    (path / MANIFEST).unlink()
    with pytest.raises(ArchiveDamaged, match="no finished archive"):
        read_manifest(path)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"folder": ""},
        {"folder": "/proc/nowhere"},
        {"folder": "x", "before": "$a", "before_time": 5},
        {"folder": "x", "spark": 5},
        {"folder": "x", "master": "nonsense://"},
    ],
)
def test_unusable_arguments(arguments, tmp_path):
    if arguments.get("folder") == "x":
        arguments = {**arguments, "folder": str(tmp_path)}
    with pytest.raises(UnusableArguments), any_folder():
        run_job("archive", {"room": "!x:a.test", **arguments}, stream=io.StringIO())
    assert not Job.objects.exists()


def test_digests_are_those_of_the_database(tmp_path):
    query = (
        "SELECT chain, state_group, type, state_key, event_id FROM "
        "(VALUES (1::bigint, 2::bigint, 'a'::text, ''::text, NULL::text), (1, 3, E'\\u00fc\\n', 'x', '$y')) "
        "AS d (chain, state_group, type, state_key, event_id)"
    )
    with connection.cursor() as cursor:
        cursor.execute(parts.digest_sql("delta", query))
        told = cursor.fetchone()
        cursor.execute("BEGIN")
        cursor.execute("SELECT pg_export_snapshot()")
        (name,) = cursor.fetchone()
        with in_snapshot(dsn("default"), name, "test") as snapshot:
            file = write_part(snapshot, str(tmp_path), ArchivePart("delta", "d.parquet", query))
        cursor.execute("ROLLBACK")
    assert (file["rows"], file["digest"]) == told == digest_of("delta", read_batches(tmp_path / "d.parquet", "delta"))


# --- folders of queued jobs -------------------------------------------------------------------------------------------


def test_a_queued_archive_lies_below_the_folder_of_archives(tmp_path, settings):
    settings.REPLSITE_ARCHIVE_FOLDER = tmp_path / "archives"
    made = talked_room(2)
    told = queue_job("archive", {"room": made.room_id, "folder": "weekly"}, by="ann").arguments
    assert told["folder"] == str(tmp_path / "archives" / "weekly")
    path = Path(run_job("archive", {"room": made.room_id, "folder": "weekly"}, stream=io.StringIO())["folder"])
    assert path.parent == tmp_path / "archives" / "weekly"
    assert queue_job("restore", {"archive": f"weekly/{path.name}"}, by="ann").arguments == {"archive": str(path)}


@pytest.mark.parametrize("folder", ["/etc", "../x", "link/x", "a\0b", 5, None, "a" * 256, "file/x", "circle/x"])
def test_a_queued_job_does_not_leave_it(folder, tmp_path, settings):
    settings.REPLSITE_ARCHIVE_FOLDER = tmp_path
    (tmp_path / "link").symlink_to("/tmp")
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to("circle")
    for kind, arguments in {
        "archive": {"room": "!x:a.test", "folder": folder},
        "restore": {"archive": folder},
        "purge room": {"room": "!x:a.test", "archive": folder or "/"},
        "purge history": {"room": "!x:a.test", "before": "$x", "archive": folder or "/"},
        "purge retention": {"archive": folder or "/"},
    }.items():
        with pytest.raises(UnusableArguments):
            queue_job(kind, arguments, by="ann")
    assert not Job.objects.exists()


def test_only_the_job_makes_the_folder_of_an_archive(tmp_path, settings):
    """Arguments are checked before rights: a request that is refused would leave folders, of any number and names."""
    settings.REPLSITE_ARCHIVE_FOLDER = tmp_path / "archives"
    made = talked_room(2)
    told = queue_job("archive", {"room": made.room_id, "folder": "deep/new"}, by="ann").arguments
    queue_job("purge room", {"room": made.room_id, "archive": "other", "dry_run": True}, by="ann")
    assert not (tmp_path / "archives").exists()
    path = Path(run_job("archive", told, stream=io.StringIO())["folder"])
    assert path.parent == tmp_path / "archives" / "deep" / "new"
    assert mode_of(path.parent) == 0o700
