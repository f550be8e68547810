"""Errors of the room ``pipeline``.

PipelineError
    JavaMissing            no Java for Spark
    UnusableArguments      a path or option that cannot be used (exit status 2)
        UnusableSource     what an import should read is of no form that it knows
    JobCancelled           somebody asked for the end of the job
    JobInterrupted         the process that works on a queued job was told to end; the job is queued again
    JobLost                the process that works on a job has lost the job's lock
    ClusterUnfit           executors lack a package, the way to the database, or cores
    MasterAway             no Spark master answers
    QueueFull              too many jobs wait already
    CarriedOut             a dry run was confirmed already
    UnknownJob             there is no such job
        UnknownKind        there is no such kind of job (exit status 2)
    SourceChanged          an input file is not what the job began with
    DiskFull               a disk is full; what was done stays, and the job can be resumed
    LedgerMismatch         a batch does not continue where the table's ledger ends
    QueryRunning           another process runs the query
    FactsNotAppended       what Spark wrote to a stream was not appended
    ExportRunning          another export writes to the same folder
    ExportDiffers          an export has not the rows that the database has
    ArchiveDamaged         an archive is not, or no longer, what was written
    ArchiveElsewhere       an archive does not fit this database
    QueryFailed            a query of the live pipeline has ended by itself
"""

from __future__ import annotations

__all__ = [
    "ArchiveDamaged",
    "ArchiveElsewhere",
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
    "LoaderFailed",
    "MasterAway",
    "PipelineError",
    "QueryFailed",
    "QueryRunning",
    "QueueFull",
    "SourceChanged",
    "SparkFailed",
    "UnknownJob",
    "UnknownKind",
    "UnusableArguments",
    "UnusableSource",
]


class PipelineError(Exception):
    """Base of this room's errors; the message tells what, where and what to do."""


class JavaMissing(PipelineError):
    """Spark needs a Java that is not there."""


class UnusableArguments(PipelineError):
    """A path or an option cannot be used."""


class UnusableSource(UnusableArguments):
    """A file or a database from which no events can be read; nothing was begun."""


class JobCancelled(PipelineError):
    """Somebody asked for the end of the job; what it has done stays."""


class JobInterrupted(PipelineError):
    """The process was told to end; a queued job goes on with the next one, and what it has done stays."""


class JobLost(PipelineError):
    """The job's lock went with its connection, so another process may have begun the job: this one leaves it."""


class ClusterUnfit(PipelineError):
    """Executors of a cluster cannot do our work."""


class MasterAway(PipelineError):
    """Nothing answers where the Spark master should be."""


class QueueFull(PipelineError):
    """As many jobs wait as may."""


class CarriedOut(PipelineError):
    """A dry run is carried out once."""


class UnknownJob(PipelineError):
    """There is no job of that number."""


class UnknownKind(UnknownJob):
    """There is no kind of job of that name."""


class SourceChanged(PipelineError):
    """A file differs from what the job began with, so what was staged of it cannot be trusted."""


class DiskFull(PipelineError):
    """A disk is full; the job can be resumed when there is space."""


class LedgerMismatch(PipelineError):
    """A micro-batch does not begin where the ledger of its table ends."""


class QueryRunning(PipelineError):
    """Another living process keeps the same table current."""


class QueryFailed(PipelineError):
    """A query of the live pipeline ended with an error; its tables are as they were after its last batch."""


class SparkFailed(PipelineError):
    """A Spark job failed; what was done before stays, and the job can be resumed."""


class LoaderFailed(PipelineError):
    """A loader of an import ended with ``error``, which is what to tell."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"Loading failed: {error}")
        self.error = error


class ExportRunning(PipelineError):
    """Another export writes to the same folder."""


class ExportDiffers(PipelineError):
    """An export has not the rows that the database has; what was in its folder is as it was."""


class ArchiveDamaged(PipelineError):
    """An archive is incomplete, or differs from what was written; nothing is deleted or restored on its word."""


class ArchiveElsewhere(PipelineError):
    """An archive is of another database, or its positions are taken here."""


class FactsNotAppended(PipelineError):
    """Facts that Spark wrote to a stream were not appended, none of them."""
