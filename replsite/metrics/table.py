"""Lists all metrics: name, labels, help text, source of the samples, and Synapse's names.

The tables ``CLUSTER`` and ``SYNAPSE`` describe the whole cluster, ``PROCESS`` describes one process.
``docs/reference/metrics.md`` is generated from these tables.
"""

from __future__ import annotations

import platform

import django

from replsite import installed_apps
from replsite.metrics import sources
from replsite.metrics.measure import Alias, Measure, counted_by_library, metric
from replsite.metrics.sources import ProcessScrape, Scrape, lag_seconds
from replsite.status.words import JobWord, Severity
from streams.browsers.clients import WHAT_HAPPENS
from streams.follow import lag_histogram

_TCP = "synapse_replication_tcp_"
_WORDS = {"command": "command", "name": "name"}
_NAME = {"name": "name"}
_STREAM_NAME = {"stream": "stream_name"}
#: The number of other servers is unbounded, so their names do not become labels.
_ENTITY = {"local": "*client*", "remote": "*remote*"}

# fmt: off
UP: Measure[Scrape] = metric("replsite_snapshot_up", "1 if the database could be read for this scrape", lambda _: [(1,)])
CLUSTER: tuple[Measure[Scrape], ...] = (
    UP,
    metric("replsite_snapshot_duration_seconds", "Time that the snapshot took", lambda s: [(s.seconds,)]),
    metric("replsite_snapshot_timestamp_seconds", "The database's clock at the snapshot: compare other times with it",
           lambda s: [(s.snapshot.as_of,)]),
    metric("replsite_build_info{version,python,django}", "Versions; always 1",
           lambda s: [(1, s.snapshot.version, platform.python_version(), django.get_version())]),

    # --- streams and writers
    metric("replsite_stream_position{stream,writer}", "Position of a writer of a stream",
           lambda s: ((w.position, *at) for at, w in s.writers)),
    metric("replsite_stream_linear_position{stream}", "Position up to which every fact of any writer is complete",
           lambda s: ((stream.linear_position, stream.name) for stream in s.streams)),
    metric("replsite_stream_sequence_value{stream}", "Last ID that the stream's sequence gave out",
           lambda s: ((stream.sequence_value, stream.name) for stream in s.streams)),
    metric("replsite_stream_open_appends{stream}", "Transactions that have appended and have not ended",
           lambda s: ((len(stream.holders), stream.name) for stream in s.own_streams)),
    metric("replsite_stream_oldest_open_seconds{stream}", "Age of the oldest of these transactions; 0: there is none",
           lambda s: ((max((h.seconds or 0.0 for h in stream.holders), default=0.0), stream.name)
                      for stream in s.own_streams)),
    metric("replsite_stream_facts_completed_total{stream,writer}", "Facts of the writer that were counted so far",
           lambda s: ((w.facts_written, *at) for at, w in s.writers)),
    metric("replsite_stream_last_fact_timestamp_seconds{stream,writer}", "When the writer's last fact was found",
           lambda s: ((w.last_write_at, *at) for at, w in s.writers)),
    metric("replsite_stream_last_advance_timestamp_seconds{stream,writer}", "When the writer's position last rose",
           lambda s: ((w.last_advance_at, *at) for at, w in s.writers)),
    metric("replsite_stream_updates_sent_total{stream}",
           "Rows that servers sent, each once however many clients took it",
           lambda s: ((n, stream) for stream, n in s.workers.counted("updates").items()),
           Alias(f"{_TCP}resource_stream_updates", _STREAM_NAME)),
    metric("replsite_writer_status{stream,writer,status}", "1 for the status word that applies to the writer",
           sources.writer_status),
    metric("replsite_expected_writer_well{stream,writer}",
           "1 if a writer of this name or pattern of REPLSITE_EXPECTED_WRITERS is there and writes as much as is"
           " expected; else 0",
           lambda s: ((e.status.severity == Severity.FINE, stream.name, e.writer)
                      for stream in s.streams for e in stream.expected)),

    # --- readers and connections
    metric("replsite_reader_position{reader,stream,writer}", "Position of a reader for each writer of a stream",
           sources.reader_positions),
    metric("replsite_reader_lag_facts{reader,stream}",
           "Facts that the reader has not read yet; beyond the newest 2,000 estimated from the difference of IDs",
           lambda s: ((max(view.lag_facts for view in views), *at) for at, views in s.followed)),
    metric("replsite_reader_lag_seconds{reader,stream}",
           "Age of the oldest fact that the reader has not read; 0: none",
           lambda s: ((lag_seconds(views), *at) for at, views in s.followed)),
    metric("replsite_reader_status{reader,stream,status}", "1 for the status word that applies to the reader",
           sources.reader_status),
    metric("replsite_reader_parked_facts{reader,stream}",
           "Facts that the reader's handler could not take and that were put aside; at most 10,000 are counted",
           lambda s: ((sum(view.parked_facts for view in views), *at) for at, views in s.followed)),
    metric("replsite_replication_connections{direction}",
           "Replication connections: inbound to our servers, outbound of our followers",
           sources.connections,
           Alias(f"{_TCP}resource_total_connections", {}, {"direction": "inbound"})),
    metric("replsite_replication_closed_total{reason}", "Replication connections that ended",
           lambda s: ((n, reason) for reason, n in s.workers.counted("closed").items()),
           Alias(f"{_TCP}protocol_close_reason", {"reason": "reason_type"})),
    metric("replsite_connections_refused_total{reason}", "Connections that were refused",
           lambda s: ((n, reason) for reason, n in s.workers.counted("refused").items())),
    metric("replsite_replication_commands_received_total{command,name}", "Commands that clients sent to servers",
           lambda s: sources.of_clients(s.workers.counted("received")),
           Alias(f"{_TCP}protocol_inbound_commands", _WORDS)),
    metric("replsite_replication_commands_sent_total{command,name}", "Commands that servers sent to clients",
           lambda s: sources.of_clients(s.workers.counted("sent")),
           Alias(f"{_TCP}protocol_outbound_commands", _WORDS)),
    metric("replsite_replication_rdata_received_total{stream}", "RDATA commands that our followers received",
           lambda s: ((n, stream) for stream, n in s.workers.counted("rdata").items()),
           Alias(f"{_TCP}protocol_inbound_rdata_count", _STREAM_NAME)),
    metric("replsite_replication_queue_length{stream}", "Rows that our followers received and have not handled yet",
           sources.queued,
           Alias(f"{_TCP}command_queue", _STREAM_NAME)),
    metric("replsite_replication_pending_commands{name}", "Commands that wait here for a connection to take them",
           lambda s: ((sum(reader.waiting.lines for reader in served), label) for label, served in s.served),
           Alias(f"{_TCP}protocol_pending_commands", _NAME)),
    metric("replsite_replication_send_buffer_bytes{name}", "Bytes that wait here for a connection to take them",
           lambda s: ((sum(reader.buffer_bytes for reader in served), label) for label, served in s.served),
           Alias(f"{_TCP}protocol_transport_send_buffer", _NAME)),
    metric("replsite_replication_kernel_buffer_bytes{name,direction}",
           "Bytes in the system's buffers of a connection: send (not acknowledged by the other host), read (not read"
           " by us)",
           sources.kernel_buffers,
           Alias(f"{_TCP}protocol_transport_kernel_send_buffer", _NAME, {"direction": "send"}),
           Alias(f"{_TCP}protocol_transport_kernel_read_buffer", _NAME, {"direction": "read"})),

    # --- workers
    metric("replsite_syncing_users", "Users that sync on some worker now", lambda s: [(s.workers.users_syncing,)]),
    metric("replsite_worker_syncing_users{worker}", "Users that sync over connections of that name",
           sources.worker_users),
    metric("replsite_federation_acknowledged_position{sender}", "Federation token that a sender acknowledged",
           sources.acknowledged),
    metric("replsite_user_addresses", "Addresses of users that are kept; counted up to 100,000",
           lambda s: [(s.workers.addresses,)]),
    metric("replsite_worker_reports_dropped_total{command}", "Reports of workers that were dropped",
           lambda s: ((n, command) for command, n in s.workers.counted("dropped").items())),

    # --- storage and jobs
    metric("replsite_state_groups", "State groups that are stored",
           lambda s: ((db.state_groups,) for db in s.storage)),
    metric("replsite_state_group_rows", "Rows in which the state groups are stored",
           lambda s: ((db.state_group_rows,) for db in s.storage)),
    metric("replsite_state_groups_unreferenced", "State groups that nothing needs",
           lambda s: ((db.unreferenced_groups,) for db in s.storage)),
    metric("replsite_database_bytes", "Size of the database on disk",
           lambda s: ((db.database.size_bytes,) for db in s.storage)),
    metric("replsite_standby_connected{slot}",
           "1 if a standby of the database reads from this replication slot; else 0, and the slot keeps WAL for it",
           lambda s: ((connected, slot) for db in s.storage for slot, connected in db.standbys)),
    metric("replsite_disk_free_bytes", "Free space of the disk of REPLSITE_DATA_DIR, on the host that answers",
           lambda s: [(s.disk_free,)]),
    metric("replsite_disk_reserve_bytes", "How much of it is to stay free: REPLSITE_DISK_RESERVE_BYTES",
           lambda s: [(s.disk_reserve,)]),
    metric("replsite_jobs{status}", "Jobs that wait, are at work, or ended within a day", sources.jobs_by_status),
    metric("replsite_job_last_success_timestamp_seconds{job}", "When a job of this kind was last done",
           lambda s: ((kind.last_success_at, kind.kind) for kind in s.jobs.kinds)),
    metric("replsite_job_last_failure_timestamp_seconds{job}", "When a job of this kind last failed",
           lambda s: ((kind.last_failure_at, kind.kind) for kind in s.jobs.kinds)),
    metric("replsite_job_progress_ratio{job}",
           "Share of its stage that the job of this kind at work has done; the least",
           sources.job_progress),
    metric("replsite_job_period_seconds{job}", "How often a job of this kind is to be done: REPLSITE_JOB_PERIODS",
           sources.job_periods),
    metric("replsite_job_rows_total{job,table,action}",
           "Rows by which jobs that are done changed a table, in sum: added or removed",
           lambda s: ((n, *key.split("|")) for key, n in s.workers.counted("job rows").items())),
    metric("replsite_pipeline_batches_total{query}", "Batches that a query of the live pipeline has taken",
           lambda s: ((query.batches, query.query) for query in s.jobs.queries)),
    metric("replsite_pipeline_last_batch_timestamp_seconds{query}",
           "When a query of the live pipeline last took a batch",
           lambda s: ((query.applied_at, query.query) for query in s.jobs.queries)),
)

#: Metrics of Synapse that differ from ours not only by name. They have other units, or are about the stream ``events`` alone.
SYNAPSE: tuple[Measure[Scrape], ...] = (
    metric("synapse_event_persisted_position{server_name}", "Linear position of the stream events",
           lambda s: ((stream.linear_position, s.server_name) for stream in s.events),
           stands_for="replsite_stream_linear_position"),
    metric("synapse_storage_stream_current_position{stream_name,server_name}",
           "Position up to which every fact of any writer is complete",
           sources.linear_positions, stands_for="replsite_stream_linear_position"),
    metric("synapse_event_processing_positions{name,server_name}", "Position of a reader of the stream events",
           lambda s: ((min(view.position for view in views), at, s.server_name) for at, views in s.on_events),
           stands_for="replsite_reader_position"),
    metric("synapse_event_processing_lag{name,server_name}",
           "Lag of a reader of the stream events, in milliseconds",
           lambda s: ((lag_seconds(views) * 1000, at, s.server_name) for at, views in s.on_events),
           stands_for="replsite_reader_lag_seconds"),
    metric("synapse_event_processing_last_ts{name,server_name}",
           "Time up to which a reader of the stream events has read, in milliseconds since the epoch",
           sources.read_upto, stands_for="replsite_reader_lag_seconds"),
    metric("synapse_build_info{pythonversion,version,osversion}", "Versions; always 1",
           lambda s: [(1, platform.python_version(), f"replsite {s.snapshot.version}", platform.system())],
           stands_for="replsite_build_info"),
    metric("synapse_scheduler_running_tasks{server_name}", "Jobs at work",
           lambda s: [(sum(job.status.word == JobWord.RUNNING for job in s.jobs.jobs), s.server_name)],
           stands_for="replsite_jobs"),
    metric("synapse_background_update_status{server_name}",
           "Jobs: 3 none is left to do, 2 one is at work or waits, -1 the last one failed",
           lambda s: [(sources.background_status(s), s.server_name)], stands_for="replsite_jobs"),
)

#: Metrics from plain counters of this process.
PLAIN: tuple[Measure[ProcessScrape], ...] = (
    metric("replsite_wait_timeouts_total{stream}", "Waits for a position that timed out in this process",
           lambda p: ((n, stream) for stream, n in p.timed_out),
           Alias("synapse_notifier_wait_for_stream_token_timeouts", {"stream": "stream_key"})),
    metric("replsite_hot_waiters", "Callers that wait for news in this process",
           lambda p: ((hot.waiting,) for hot in p.hot)),
    metric("replsite_hot_woken_total", "Callers woken by what concerned them",
           lambda p: ((hot.counts.get("woken", 0),) for hot in p.hot)),
    metric("replsite_hot_refused_total", "Callers refused: as many waited as may",
           lambda p: ((hot.counts.get("refused", 0),) for hot in p.hot)),
    metric("replsite_hot_users", "Users whose rooms are remembered", lambda p: ((hot.users,) for hot in p.hot)),
    metric("replsite_hot_entries{stream}", "Last changes that are remembered",
           lambda p: ((n, stream) for hot in p.hot for stream, n in sorted(hot.entries.items()))),
    metric("replsite_hot_begun_anew_total{reason}",
           "Times that everything, or a stream, was forgotten: connection, restored, trimmed, behind, error",
           lambda p: ((hot.counts.get(reason, 0), reason) for hot in p.hot
                      for reason in ("connection", "restored", "trimmed", "behind", "error"))),
    metric("replsite_browsers", "Browsers that this process sends facts to", lambda p: ((p.browsers,),)),
    metric("replsite_browser_connections_total{what}",
           "Browsers whose connection began, was refused or ended, by reason, and those that had to load their state anew",
           lambda p: ((p.browser_counts[reason], reason) for reason in WHAT_HAPPENS)),
    metric("replsite_requests_refused_total{lane}", "HTTP requests that found no place in this process",
           lambda p: ((pool.refused, pool.name) for pool in p.pools)),
    metric("replsite_requests_at_work{lane}", "HTTP requests that this process works on",
           lambda p: ((pool.at_work, pool.name) for pool in p.pools)),
)
_OF_ROOMS: tuple[Measure[ProcessScrape], ...] = ()
if installed_apps.has("events"):
    from events.persist import counters

    _OF_ROOMS = (
    counted_by_library(counters.EVENTS, Alias("synapse_storage_events_persisted_events")),
    counted_by_library(
        counters.EVENTS_BY_TYPE,
        Alias("synapse_storage_events_persisted_events_sep", {"type": "type", "origin": "origin_type"},
              fixed={"origin_entity": _ENTITY})),
    counted_by_library(counters.GROUPS),
    counted_by_library(counters.HOPS),
    )
#: Metrics that prometheus_client counts and exports itself.
BY_LIBRARY = (
    *_OF_ROOMS,
    counted_by_library(
        lag_histogram.DELAY,
        Alias("synapse_event_processing_lag_by_event", {"reader": "name"}, {"stream": "events"})),
)
# fmt: on
PROCESS = (*PLAIN, *BY_LIBRARY)
