"""The job that removes archives and exports: what it takes, what it refuses, and what keeps it out."""

from __future__ import annotations

import html
import io
import json
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command

from events.admin.links import room_url
from events.errors import PurgeRefused
from events.maintenance.purge_lock import purge_lock
from pipeline.archive.format import MANIFEST, PARTIAL
from pipeline.conf import pipeline_settings
from pipeline.errors import ArchiveInUse, ExportRunning
from pipeline.export.folder import MANIFEST as EXPORTED
from pipeline.export.folder import export_lock
from pipeline.maintenance import written_folders
from pipeline.maintenance.written_folders import find_folders
from pipeline.models import Job
from pipeline.operations import remove_archive
from streams.db import driver
from streams.jobs.counts import changed_rows
from streams.jobs.errors import UnusableArguments
from streams.jobs.rows import hold_lock
from streams.jobs.run import check_arguments, run_job
from tests.integration.events.test_purging import talked_room

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def exports(settings, monkeypatch, tmp_path):
    """The folder of exports. That of archives is beside it."""
    settings.REPLSITE_SERVER_NAME = "nobody.test"
    settings.REPLSITE_ARCHIVE_FOLDER = tmp_path / "archives"
    monkeypatch.setattr(written_folders, "exports_folder", lambda: tmp_path / "exports")
    return tmp_path / "exports"


@pytest.fixture
def room_id():
    return talked_room(6).room_id


@pytest.fixture
def archive(room_id) -> Path:
    """The archive of a room, as a queued job writes it."""
    return Path(run_job("archive", {"room": room_id, "folder": "of/lobby"}, stream=io.StringIO())["folder"])


@pytest.fixture
def export(exports) -> Path:
    """A folder with what an export has: a table, in parts by room and day, and a manifest."""
    path = exports / "nightly"
    part = path / "events" / "room_bucket=0" / "day=2026-01-31"
    part.mkdir(parents=True)
    (part / "part-0.parquet").write_bytes(b"x" * 1_000)
    (path / "events" / "_SUCCESS").touch()
    tables = {"events": {"rows": 12_345, "files": 1, "bytes": 1_000, "room_buckets": 1, "days": 1}}
    told = {"format": 1, "made_at_ms": 1_795_312_800_000, "rooms": ["!a:b"], "tables": tables}
    (path / EXPORTED).write_text(json.dumps(told))
    return path


def remove(folder, **more):
    return run_job("remove archive", {"folder": str(folder), **more}, stream=io.StringIO())


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_dry_run_tells_what_goes_and_the_job_removes_it(archive, room_id):
    files = list(archive.iterdir())
    size = sum(file.stat().st_size for file in files)
    foreseen = remove(archive, dry_run=True)
    assert sorted(archive.iterdir()) == sorted(files)
    assert (foreseen["what"], foreseen["room_id"]) == ("archive", room_id)
    assert (foreseen["files"], foreseen["bytes"]) == (len(files), size)
    assert f"archive of {room_id}, made {foreseen['made_at']}, " in foreseen["words"]
    assert "would be removed; messages that were purged meanwhile are gone with it" in foreseen["words"]
    done = remove(archive)
    assert done == {**foreseen, "dry_run": False, "words": foreseen["words"].replace("would be removed", "removed")}
    assert not archive.exists()
    assert archive.parent.exists(), "the folder above it is not its own"
    job = Job.objects.latest("pk")
    assert (job.before["files"], job.after["files"]) == (str(len(files)), "0")
    assert not list(changed_rows(job.before, job.after)), "files are no rows"


def test_an_archive_whose_room_was_purged_is_said_to_be_the_only_copy(archive, room_id):
    run_job("purge room", {"room": room_id, "force": True}, stream=io.StringIO())
    assert remove(archive, dry_run=True)["words"].endswith("the room is in no other place here")


def test_an_export_is_removed(export):
    done = remove("nightly")
    assert (done["what"], done["folder"], done["room_id"]) == ("export", str(export), "!a:b")
    assert done["words"].startswith("export of !a:b, made 22 Nov 2026 02:00 UTC, 1.")
    assert not export.exists() and export.parent.exists()


@pytest.mark.parametrize(
    "name",
    ["../../elsewhere", "/", "/etc", ".", "..", "", "a\0b", "\ud800", 5, None, "none", "a" * 256, "a/" * 3_000],
    ids=lambda name: f"{name!r:.20}",
)
def test_what_is_no_archive_of_the_site_is_refused(archive, export, name, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    archive.rename(elsewhere)
    with pytest.raises(UnusableArguments):
        check_arguments("remove archive", {"folder": name}, "default")
    with pytest.raises(UnusableArguments, match=r"is not below .*rm -r"):
        remove(elsewhere)
    assert (elsewhere / MANIFEST).exists() and export.exists()


def test_a_symbolic_link_is_refused_wherever_it_is(archive, tmp_path):
    folder = pipeline_settings().archive_folder
    elsewhere = tmp_path / "elsewhere"
    archive.rename(elsewhere)
    (folder / "link").symlink_to(elsewhere)
    (folder / "above").symlink_to(tmp_path)
    for name in ("link", "above/elsewhere"):
        with pytest.raises(UnusableArguments, match="symbolic link"):
            remove(name)
    (folder / "circle").symlink_to("circle")
    for name in ("circle", "circle/x"):
        for kind, argument in (("remove archive", "folder"), ("restore", "archive")):
            with pytest.raises(UnusableArguments):
                check_arguments(kind, {argument: name}, "default")
    assert find_folders() == ([], True)
    assert (elsewhere / MANIFEST).exists()


def test_a_link_inside_is_refused_and_what_it_names_stays(export, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").touch()
    (export / "state").symlink_to(other)
    with pytest.raises(UnusableArguments, match="has something that neither of them writes"):
        remove(export)
    (export / "state").unlink()
    (export / "events" / "link").symlink_to(other)
    remove(export)
    assert (other / "file").exists()


def test_the_folder_of_archives_may_be_a_link_itself(archive, tmp_path):
    folder = pipeline_settings().archive_folder
    folder.rename(tmp_path / "large disk")
    folder.symlink_to(tmp_path / "large disk")
    remove(archive)
    assert below(folder) == ["of", "of/lobby"]


@pytest.mark.parametrize("name", ["notes.txt", "another", "event-00000.parquet.old"])
def test_a_folder_with_something_else_in_it_stays_whole(archive, name):
    (archive / name).mkdir() if name == "another" else (archive / name).touch()
    before = below(archive)
    with pytest.raises(UnusableArguments, match="has something that neither of them writes"):
        remove(archive)
    assert below(archive) == before


def test_an_archive_is_kept_while_its_room_is_archived_purged_or_restored(archive, room_id):
    with purge_lock(room_id, "default"), pytest.raises(PurgeRefused, match="is being purged already"):
        remove(archive)
    assert (archive / MANIFEST).exists()
    remove(archive)


def test_an_unfinished_archive_is_kept_while_its_job_is_at_work(archive):
    unfinished = archive.rename(archive.with_name(archive.name + PARTIAL))
    (unfinished / MANIFEST).unlink()
    number = int(archive.name.rpartition("-")[2])
    with hold_lock("default") as lock:
        assert lock.acquire(number)
        with pytest.raises(ArchiveInUse, match=f"Job {number} is writing"):
            remove(unfinished)
        lock.release(number)
    assert unfinished.exists()
    assert remove(unfinished)["what"] == "unfinished archive"
    assert not unfinished.exists()


def test_an_export_is_kept_while_another_job_writes_to_it(export):
    other = driver.direct_connection(application_name="test")
    with closing(other), other.cursor() as cursor, export_lock(cursor, export), pytest.raises(ExportRunning):
        remove(export)
    assert (export / EXPORTED).exists()
    remove(export)


def test_what_a_killed_removal_has_left_is_an_unfinished_archive(archive, monkeypatch):
    def killed(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(remove_archive, "remove_folder", killed)
        remove(archive)
    (found,), _ = find_folders()
    assert (found.path, found.kind) == (archive, "unfinished archive")
    remove(archive)
    assert not archive.exists()


def test_all_are_found_the_biggest_first(archive, export, exports):
    (archive / "event-00000.parquet").open("ab").truncate(50_000_000)
    (exports / "foreign").mkdir()
    (exports / "foreign" / "file").touch()
    found, is_whole = find_folders()
    assert [(one.path, one.kind) for one in found] == [(archive, "archive"), (export, "export")]
    assert is_whole
    assert find_folders(most=0) == ([], False)
    told = written_folders.with_contents(found[1])
    assert (told.room_id, told.events, told.made_at) == ("!a:b", 12_345, 1_795_312_800.0)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"rooms": 5, "tables": {}, "made_at_ms": 1}'])
def test_a_damaged_manifest_is_told_and_the_folder_can_be_removed(archive, export, content):
    (archive / MANIFEST).write_bytes(content)
    (export / EXPORTED).write_bytes(content)
    for path in (archive, export):
        assert written_folders.find_folder(str(path)).is_damaged
        remove(path)
        assert not path.exists()


def test_the_command_removes_one_too(archive, room_id, tmp_path):
    def purge(folder, *more):
        out = io.StringIO()
        call_command("purge", "archive", folder, *more, stdout=out, stderr=io.StringIO())
        return out.getvalue()

    foreseen = json.loads(purge(str(archive), "--dry-run", "--json"))
    assert foreseen["room_id"] == room_id and foreseen["bytes"] > 0
    with pytest.raises(CommandError, match="is not below"):
        purge(str(tmp_path), "--yes")
    assert "removed" in purge(f"of/lobby/{archive.name}", "--yes")
    assert not archive.exists()


# --- the page ---------------------------------------------------------------------------------------------------------

PAGE = "/admin/archives/"


@pytest.fixture
def staff(client):
    """``staff("view_job")``: the list as a user sees it who may do that."""

    def get(*permissions):
        user, _ = User.objects.get_or_create(username="ann", defaults={"is_staff": True})
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client.force_login(user)
        answer = client.get(PAGE)
        return answer.status_code, html.unescape(answer.content.decode())

    return get


def test_the_list_shows_what_a_user_may_see_and_do(archive, export, room_id, staff):
    status, text = staff("queue_job")
    assert status == 403 and "pipeline.view_job" in text
    status, text = staff("view_job")
    assert status == 200 and f'href="{PAGE}"' in text, "the sidebar leads to it"
    assert archive.name in text and export.name in text and "12,345" in text and "2026-11-22 02:00:00" in text
    assert room_id in text and "Remove …" not in text
    address = f'href="{room_url(room_id)}"'
    assert address not in text
    status, text = staff("view_job", "view_room", "queue_job")
    assert address in text
    asked = urlencode({"kind": "remove archive", "folder": str(archive)})
    assert f"/admin/pipeline/job/queue/?{asked}" in text


def test_the_list_tells_which_room_is_gone_and_which_archive_is_damaged(archive, export, room_id, staff):
    (archive / "event-00000.parquet").open("ab").truncate(5_000_000)
    assert "not in the database any more" in staff("view_job")[1], "the room of the export"
    export.rename(export.with_name("<b>"))
    (export.with_name("<b>") / EXPORTED).write_text("{")
    text = staff("view_job")[1]
    assert "damaged export" in text and "not in the database any more" not in text
    run_job("purge room", {"room": room_id, "force": True}, stream=io.StringIO())
    assert "not in the database any more" in staff("view_job", "view_room")[1]


def test_the_list_says_that_there_is_none(staff):
    assert "There is no archive and no export" in staff("view_job")[1]
