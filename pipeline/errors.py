"""Errors of the package ``pipeline``. Each message says what is wrong, where, and what to do.

PipelineError
    JavaMissing            no Java for Spark
    SparkNotStarted        Spark's JVM did not start
    UnusableArguments      a path or option that cannot be used (exit status 2)
        UnusableSource     an import's source has no form that an import can read
    JobCancelled           a user cancelled the job
    JobInterrupted         the process of a queued job was asked to stop; the job is queued again
    JobLost                the process that works on a job has lost the job's lock
    ClusterUnfit           executors lack a package, access to the database, or cores
    MasterAway             no Spark master answers
    QueueFull              too many jobs wait already
    CarriedOut             a dry run was confirmed already
    NotResumable           a job waits, is at work or is done, so it cannot be resumed
    UnknownJob             there is no such job
        UnknownKind        there is no such kind of job (exit status 2)
    SourceChanged          an input file is not the one with which the job began
    DiskFull               a disk is full; the work so far stays, and the job can be resumed
    LedgerMismatch         a batch does not continue where the table's ledger ends
    QueryRunning           another process runs the query
    FactsNotAppended       the facts that Spark wrote to a stream were not appended
    ExportRunning          another export writes to the same folder
    ExportDiffers          the rows of an export are not those of the database
    ArchiveDamaged         an archive is incomplete or was changed
    ArchiveElsewhere       an archive does not fit this database
    ArchiveTooLarge        an archive would have more files than a restore takes
    ArchiveInUse           a job is writing the archive that is to be removed
    QueryFailed            a query of the live pipeline has ended by itself
    SnapshotEnded          the session that shared a snapshot has ended
    SparkFailed            a Spark job failed; the job can be resumed
    LoaderFailed           a loader of an import failed
    RoomsKnown             rooms that are to be loaded are stored already
    PackIncomplete         a task that loads rooms got only a part of their rows
    LoadRefused            a task that loads rooms got no stream IDs
"""

from __future__ import annotations

__all__ = [
    "ArchiveDamaged",
    "ArchiveElsewhere",
    "ArchiveInUse",
    "ArchiveTooLarge",
    "CarriedOut",
    "ClusterUnfit",
    "DiskFull",
    "ExportDiffers",
    "ExportRunning",
    "FactsNotAppended",
    "JavaMissing",
    "JobCancelled",
    "JobInterrupted",
    "JobLost",
    "LedgerMismatch",
    "LoadRefused",
    "LoaderFailed",
    "MasterAway",
    "NotResumable",
    "PackIncomplete",
    "PipelineError",
    "QueryFailed",
    "QueryRunning",
    "QueueFull",
    "RoomsKnown",
    "SnapshotEnded",
    "SourceChanged",
    "SparkFailed",
    "SparkNotStarted",
    "UnknownJob",
    "UnknownKind",
    "UnusableArguments",
    "UnusableSource",
]


class PipelineError(Exception):
    """Base class of all errors of this package."""


class JavaMissing(PipelineError):
    """Raised if Spark is needed and there is no Java that it can use."""


class SparkNotStarted(PipelineError):
    """Raised if Spark's JVM did not start, or if PySpark has no Spark of its own."""


class UnusableArguments(PipelineError):
    """Raised for a path or an option that cannot be used."""


class UnusableSource(UnusableArguments):
    """Raised before an import begins, for a file or a database from which no events can be read."""


class JobCancelled(PipelineError):
    """Raised in a job that a user has cancelled. Its work so far stays."""


class JobInterrupted(PipelineError):
    """Raised in a queued job whose process is asked to stop. Its work so far stays, and the job is queued again."""


class JobLost(PipelineError):
    """Raised in a job that has lost its lock, because the lock's connection ended.

    Another process may have begun the job, so this process stops working on it.
    """


class ClusterUnfit(PipelineError):
    """Raised if the executors of a cluster cannot do the work."""


class MasterAway(PipelineError):
    """Raised if nothing answers at the address of the Spark master."""


class QueueFull(PipelineError):
    """Raised if the queue holds as many waiting jobs as it may hold."""


class CarriedOut(PipelineError):
    """Raised if a dry run is to be carried out a second time. Only one job may carry out a dry run."""


class NotResumable(PipelineError):
    """Raised if a job that waits, is at work or is done is to be resumed. Only failed, cancelled or killed jobs can be."""


class UnknownJob(PipelineError):
    """Raised if there is no job with the given number."""


class UnknownKind(UnknownJob):
    """Raised if there is no kind of job with the given name."""


class SourceChanged(PipelineError):
    """Raised for a source file that has changed since the job began. Rows that were read from this file cannot be trusted."""


class DiskFull(PipelineError):
    """Raised if a disk is full. The job can be resumed when there is space."""


class LedgerMismatch(PipelineError):
    """Raised for a micro-batch that does not begin where the ledger of its table ends."""


class QueryRunning(PipelineError):
    """Raised if another running process already keeps the same tables current."""


class QueryFailed(PipelineError):
    """Raised if the query of the live pipeline ended with an error. Its tables are as they were after its last batch."""


class SnapshotEnded(PipelineError):
    """Raised in a task that is to read a snapshot, if the session that shared the snapshot has ended."""


class SparkFailed(PipelineError):
    """Raised if a Spark job failed. Its work so far stays, and the job can be resumed."""


class LoaderFailed(PipelineError):
    """Raised if a loader thread of an import failed. ``error`` is the error of that thread. Report ``error`` to the user."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"Loading failed: {error}")
        self.error = error


class RoomsKnown(PipelineError):
    """Raised if rooms that are to be loaded are stored already. Nothing was loaded."""


class PackIncomplete(PipelineError):
    """Raised if a task that loads rooms got only a part of their rows. Nothing of its pack was loaded."""


class LoadRefused(PipelineError):
    """Raised if a task that loads rooms got no stream IDs. Nothing of its pack was loaded."""


class ExportRunning(PipelineError):
    """Raised if another export writes to the same folder."""


class ExportDiffers(PipelineError):
    """Raised if an export has more or fewer rows than the database. The folder is as it was before."""


class ArchiveDamaged(PipelineError):
    """Raised for an archive that is incomplete or differs from what was written. Nothing was deleted or restored."""


class ArchiveElsewhere(PipelineError):
    """Raised for an archive that does not fit this database.

    The archive has positions that the database has not given out, or only the history of a room that is gone.
    """


class ArchiveTooLarge(PipelineError):
    """Raised for an archive that would have more files than a restore takes. Nothing was written or deleted."""


class ArchiveInUse(PipelineError):
    """Raised if an archive is to be removed while a job writes this archive. Nothing was removed."""


class FactsNotAppended(PipelineError):
    """Raised if facts that Spark wrote to a stream could not be appended. No fact was appended."""
