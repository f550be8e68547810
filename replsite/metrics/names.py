"""The names of the metrics that are made of a snapshot: what each is called, its labels and what it tells."""

from __future__ import annotations

from replsite.metric_name import MetricName

__all__ = ["OWN", "SYNAPSE"]

UP = MetricName("replsite_snapshot_up", (), "1 if the database could be read for this scrape")
DURATION = MetricName("replsite_snapshot_duration_seconds", (), "Time that the snapshot took")
AS_OF = MetricName(
    "replsite_snapshot_timestamp_seconds", (), "The database's clock at the snapshot: compare other times with it"
)
BUILD = MetricName("replsite_build_info", ("version", "python", "django"), "Versions; always 1")

# --- streams and writers ----------------------------------------------------------------------------------------------
POSITION = MetricName("replsite_stream_position", ("stream", "writer"), "Position of a writer of a stream")
LINEAR = MetricName(
    "replsite_stream_linear_position", ("stream",), "Position up to which every fact of any writer is complete"
)
SEQUENCE = MetricName("replsite_stream_sequence_value", ("stream",), "Last ID that the stream's sequence gave out")
PENDING = MetricName("replsite_stream_pending_facts", ("stream", "writer"), "IDs reserved and not complete")
OLDEST_PENDING = MetricName(
    "replsite_stream_oldest_pending_seconds",
    ("stream", "writer"),
    "Age of the oldest pending fact; 0: nothing is pending",
)
COMPLETED = MetricName(
    "replsite_stream_facts_completed",
    ("stream", "writer", "outcome"),
    "Facts completed: written, rolled_back, or resolved (pending when their writer was proven dead)",
    counter=True,
)
LAST_ADVANCE = MetricName(
    "replsite_stream_last_advance_timestamp_seconds", ("stream", "writer"), "When the writer's position last rose"
)
UPDATES_SENT = MetricName(
    "replsite_stream_updates_sent",
    ("stream",),
    "Rows that servers sent, each once however many clients took it",
    counter=True,
)
HEARTBEAT = MetricName(
    "replsite_writer_heartbeat_timestamp_seconds", ("writer",), "Last sign of life of a writer's process"
)
WRITER_STATUS = MetricName(
    "replsite_writer_status", ("stream", "writer", "status"), "1 for the status word that applies to the writer"
)

EXPECTED_WELL = MetricName(
    "replsite_expected_writer_well",
    ("stream", "writer"),
    "1 if a writer of this name or pattern of REPLSITE_EXPECTED_WRITERS is there and writes as much as is expected; else 0",
)

# --- readers and connections ------------------------------------------------------------------------------------------
READER_POSITION = MetricName(
    "replsite_reader_position", ("reader", "stream", "writer"), "Position of a reader for each writer of a stream"
)
READER_LAG_FACTS = MetricName(
    "replsite_reader_lag_facts", ("reader", "stream"), "Facts that the reader has not read yet"
)
READER_LAG_SECONDS = MetricName(
    "replsite_reader_lag_seconds", ("reader", "stream"), "Age of the oldest fact that the reader has not read; 0: none"
)
READER_STATUS = MetricName(
    "replsite_reader_status", ("reader", "stream", "status"), "1 for the status word that applies to the reader"
)
READER_PARKED = MetricName(
    "replsite_reader_parked_facts",
    ("reader", "stream"),
    "Facts that the reader's handler could not take and that were put aside; at most 10,000 are counted",
)
CONNECTIONS = MetricName(
    "replsite_replication_connections",
    ("direction",),
    "Replication connections: inbound to our servers, outbound of our followers",
)
CLOSED = MetricName("replsite_replication_closed", ("reason",), "Replication connections that ended", counter=True)
REFUSED = MetricName("replsite_connections_refused", ("reason",), "Connections that were refused", counter=True)
RECEIVED = MetricName(
    "replsite_replication_commands_received", ("command", "name"), "Commands that clients sent to servers", counter=True
)
SENT = MetricName(
    "replsite_replication_commands_sent", ("command", "name"), "Commands that servers sent to clients", counter=True
)
RDATA_RECEIVED = MetricName(
    "replsite_replication_rdata_received", ("stream",), "RDATA commands that our followers received", counter=True
)
QUEUE = MetricName(
    "replsite_replication_queue_length", ("stream",), "Rows that our followers received and have not handled yet"
)
PENDING_COMMANDS = MetricName(
    "replsite_replication_pending_commands", ("name",), "Commands that wait here for a connection to take them"
)
SEND_BUFFER = MetricName(
    "replsite_replication_send_buffer_bytes", ("name",), "Bytes that wait here for a connection to take them"
)
KERNEL_BUFFER = MetricName(
    "replsite_replication_kernel_buffer_bytes",
    ("name", "direction"),
    "Bytes in the system's buffers of a connection: send (not acknowledged by the other host), read (not read by us)",
)

# --- workers ----------------------------------------------------------------------------------------------------------
SYNCING_USERS = MetricName("replsite_syncing_users", (), "Users that sync on some worker now")
WORKER_USERS = MetricName("replsite_worker_syncing_users", ("worker",), "Users that sync over connections of that name")
ACKNOWLEDGED = MetricName(
    "replsite_federation_acknowledged_position", ("sender",), "Federation token that a sender acknowledged"
)
ADDRESSES = MetricName("replsite_user_addresses", (), "Addresses of users that are kept; counted up to 100,000")
DROPPED = MetricName(
    "replsite_worker_reports_dropped", ("command",), "Reports of workers that were dropped", counter=True
)

# --- storage and jobs -------------------------------------------------------------------------------------------------
GROUPS = MetricName("replsite_state_groups", (), "State groups that are stored")
GROUP_ROWS = MetricName("replsite_state_group_rows", (), "Rows in which the state groups are stored")
UNREFERENCED = MetricName("replsite_state_groups_unreferenced", (), "State groups that nothing needs")
JOBS = MetricName("replsite_jobs", ("status",), "Jobs that wait, are at work, or ended within a day")
JOB_SUCCESS = MetricName(
    "replsite_job_last_success_timestamp_seconds", ("job",), "When a job of this kind was last done"
)
JOB_FAILURE = MetricName("replsite_job_last_failure_timestamp_seconds", ("job",), "When a job of this kind last failed")
JOB_PROGRESS = MetricName(
    "replsite_job_progress_ratio", ("job",), "Share of its stage that the job of this kind at work has done; the least"
)
JOB_PERIOD = MetricName(
    "replsite_job_period_seconds", ("job",), "How often a job of this kind is to be done: REPLSITE_JOB_PERIODS"
)
JOB_ROWS = MetricName(
    "replsite_job_rows",
    ("job", "table", "action"),
    "Rows by which jobs that are done changed a table, in sum: added or removed",
    counter=True,
)
QUERY_BATCHES = MetricName(
    "replsite_pipeline_batches", ("query",), "Batches that a query of the live pipeline has taken", counter=True
)
QUERY_LAST = MetricName(
    "replsite_pipeline_last_batch_timestamp_seconds", ("query",), "When a query of the live pipeline last took a batch"
)
OWN = (
    UP, DURATION, AS_OF, BUILD, POSITION, LINEAR, SEQUENCE, PENDING, OLDEST_PENDING, COMPLETED, LAST_ADVANCE,
    UPDATES_SENT, HEARTBEAT, WRITER_STATUS, EXPECTED_WELL, READER_POSITION, READER_LAG_FACTS, READER_LAG_SECONDS, READER_STATUS,
    READER_PARKED,
    CONNECTIONS, CLOSED, REFUSED, RECEIVED, SENT, RDATA_RECEIVED, QUEUE, PENDING_COMMANDS, SEND_BUFFER, KERNEL_BUFFER,
    SYNCING_USERS, WORKER_USERS, ACKNOWLEDGED, ADDRESSES, DROPPED, GROUPS, GROUP_ROWS, UNREFERENCED, JOBS, JOB_SUCCESS,
    JOB_FAILURE, JOB_PROGRESS, JOB_PERIOD, JOB_ROWS, QUERY_BATCHES, QUERY_LAST,
)  # fmt: skip

# --- names of Synapse for what needs more than another name -------------------------------------------------------------
SYNAPSE_PERSISTED = MetricName(
    "synapse_event_persisted_position", ("server_name",), "Linear position of the stream events"
)
SYNAPSE_LINEAR = MetricName("synapse_storage_stream_current_position", ("stream_name", "server_name"), LINEAR.help)
SYNAPSE_POSITION = MetricName(
    "synapse_event_processing_positions", ("name", "server_name"), "Position of a reader of the stream events"
)
SYNAPSE_LAG = MetricName(
    "synapse_event_processing_lag", ("name", "server_name"), "Lag of a reader of the stream events, in milliseconds"
)
SYNAPSE_LAST_TS = MetricName(
    "synapse_event_processing_last_ts",
    ("name", "server_name"),
    "Time up to which a reader of the stream events has read, in milliseconds since the epoch",
)
SYNAPSE_BUILD = MetricName("synapse_build_info", ("pythonversion", "version", "osversion"), "Versions; always 1")
SYNAPSE_TASKS = MetricName("synapse_scheduler_running_tasks", ("server_name",), "Jobs at work")
SYNAPSE_BACKGROUND = MetricName(
    "synapse_background_update_status",
    ("server_name",),
    "Jobs: 3 none is left to do, 2 one is at work or waits, -1 the last one failed",
)
SYNAPSE = (
    SYNAPSE_PERSISTED, SYNAPSE_LINEAR, SYNAPSE_POSITION, SYNAPSE_LAG, SYNAPSE_LAST_TS, SYNAPSE_BUILD, SYNAPSE_TASKS,
    SYNAPSE_BACKGROUND,
)  # fmt: skip
