"""Snapshots made by hand, for tests of what shows them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from replsite.live_rows.jobs import JobRow
from replsite.live_rows.readers import ReaderRow, ReaderStreamRow
from replsite.live_rows.snapshot import Snapshot
from replsite.live_rows.storage import RoomSizeView, StorageView, TableView
from replsite.live_rows.streams import HolderRow, StreamRow, WriterRow
from replsite.live_rows.workers import AcknowledgedView, CountView, SyncingView, WorkersView
from replsite.status.words import Health, HealthWord, Severity, Verdict

NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
WRITING = Verdict("writing", Severity.FINE, "Writing.")
OPEN = Verdict("open", Severity.FINE, "Session 81 has appended and has not ended.")
BLOCKED = Verdict("blocked", Severity.WRONG, "Session 81 has appended: manage.py streams abort events.",
                  "manage.py streams abort events", ("end",))  # fmt: skip
CURRENT = Verdict("current", Severity.FINE, "Keeps up.")
STUCK = Verdict("stuck", Severity.WRONG, "Restart it.")


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def a_writer(name: str = "master", stream: str = "events", **changes: Any) -> WriterRow:
    writer = WriterRow(
        stream=stream, writer=name, position=10, state="active", behind_facts=0, behind_seconds=0.0, behind_exact=True,
        last_write_position=10, last_write_at=ago(5), last_advance_at=ago(5), facts_written=9, status=WRITING,
    )  # fmt: skip
    return replace(writer, **changes)


def a_holder(seconds: float = 5.0, **changes: Any) -> HolderRow:
    holder = HolderRow(
        stream="events", words="session 81", writer_class=0, pid=81, prepared="", since=ago(seconds),
         seconds=seconds, state="idle in transaction", role="web", application="app",
        client="10.0.0.1", statement="INSERT INTO x VALUES ('…')", bound=7, status=OPEN if seconds <= 10 else BLOCKED,
    )  # fmt: skip
    return replace(holder, **changes)


def a_stream(*writers: WriterRow, name: str = "events", **changes: Any) -> StreamRow:
    status = max((w.status for w in writers), key=lambda s: s.severity, default=WRITING)
    stream = StreamRow(name, 10, 10, 11, ago(5), status, writers)
    return replace(stream, **changes)


def on_stream(stream: str = "events", **changes: Any) -> ReaderStreamRow:
    return replace(ReaderStreamRow(stream, {"master": 10}, 10, 0, True, 0.0, None, CURRENT), **changes)


def a_reader(name: str = "sender", *streams: ReaderStreamRow, **changes: Any) -> ReaderRow:
    followed = streams or (on_stream(),)
    reader = ReaderRow(
        key=f"key of {name}", name=name, kind="follower", served_by="", address="127.0.0.1:5", process_id=8,
        connected_at=ago(100), heartbeat_at=ago(1), heartbeat_seconds=1.0, bytes_in=1, bytes_out=2000, lines_in=3, lines_out=4,
        buffer_bytes=0, closed_at=None, close_reason="", lag_facts=sum(s.lag_facts for s in followed),
        lag_seconds=max(s.lag_seconds for s in followed), status=max((s.status for s in followed), key=lambda s: s.severity),
        streams=followed,
    )  # fmt: skip
    reader = replace(reader, **changes)
    reader.streams = tuple(replace(one, is_sent=reader.kind == "connection") for one in reader.streams)
    return reader


def a_job(number: int = 7, **changes: Any) -> JobRow:
    job = JobRow(
        id=number, kind="censor", state="running", asked_by="ann", stage="censor", unit="events", done=50, total=200, rate=10.0,
        seconds_left=15.0, queued_at=ago(90), began_at=ago(60), ended_at=None,
        status=Verdict("running", Severity.FINE, "15.0 s left in this stage."),
    )  # fmt: skip
    return replace(job, **changes)


def some_workers(**changes: Any) -> WorkersView:
    workers = WorkersView(
        users_syncing=321,
        syncing=(SyncingView("worker1", "zHeCu", "127.0.0.1:6", 320, ago(2)), SyncingView("w2", "x", "", 5, ago(3))),
        acknowledged=(AcknowledgedView("sender1", 4_711, ago(9)),),
        addresses=654,
        counts=(
            CountView("closed", "ping timeout", 17),
            CountView("dropped", "USER_IP", 3),
            CountView("job rows", "censor|due|removed", 12),
            CountView("rdata", "events", 55),
            CountView("received", "PING worker1", 987),
            CountView("refused", "no client certificate", 19),
            CountView("sent", "RDATA worker1", 4_321),
            CountView("updates", "events", 77),
        ),
    )
    return replace(workers, **changes)


def some_storage(**changes: Any) -> StorageView:
    storage = StorageView(
        as_of=ago(20), database=TableView("(database)", None, 5_000_000, 1_000_000, None, ago(86_400)),
        tables=(TableView("events_event", 1_000, 3_000_000, 600_000, 200, ago(86_400)), TableView("events_room", 10, 1_000_000)),
        state_groups=400, state_group_rows=1_000, state_bytes=2_000_000, unreferenced_groups=7,
        rooms=(RoomSizeView("!a:x", 950, 12, ago(60)), RoomSizeView("!<b>:x", 100, 2, None)),
    )  # fmt: skip
    return replace(storage, **changes)


def a_snapshot(*parts: StreamRow | ReaderRow, **changes: Any) -> Snapshot:
    snapshot = Snapshot(
        NOW,
        "1.2",
        Health(HealthWord.WELL, "All is well."),
        tuple(part for part in parts if isinstance(part, StreamRow)),
        tuple(part for part in parts if isinstance(part, ReaderRow)),
    )
    return replace(snapshot, **changes)
