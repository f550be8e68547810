"""Errors of the room ``pipeline``.

PipelineError
    JavaMissing            no Java for Spark
    UnusableArguments      a path or option that cannot be used (exit status 2)
    JobRunning             another process works on the job
    JobCancelled           somebody asked for the end of the job
    UnknownJob             there is no such job, or kind of job
    SourceChanged          an input file is not what the job began with
    LedgerMismatch         a batch does not continue where the table's ledger ends
    QueryRunning           another process runs the query
"""

from __future__ import annotations

__all__ = [
    "JavaMissing",
    "JobCancelled",
    "JobRunning",
    "LedgerMismatch",
    "PipelineError",
    "QueryRunning",
    "SourceChanged",
    "SparkFailed",
    "UnknownJob",
    "UnusableArguments",
]


class PipelineError(Exception):
    """Base of this room's errors; the message tells what, where and what to do."""


class JavaMissing(PipelineError):
    """Spark needs a Java that is not there."""


class UnusableArguments(PipelineError):
    """A path or an option cannot be used."""


class JobRunning(PipelineError):
    """Another living process works on the job."""


class JobCancelled(PipelineError):
    """Somebody asked for the end of the job; what it has done stays."""


class UnknownJob(PipelineError):
    """There is no job of that number, or no kind of that name."""


class SourceChanged(PipelineError):
    """A file differs from what the job began with, so what was staged of it cannot be trusted."""


class LedgerMismatch(PipelineError):
    """A micro-batch does not begin where the ledger of its table ends."""


class QueryRunning(PipelineError):
    """Another living process keeps the same table current."""


class SparkFailed(PipelineError):
    """A Spark job failed; what was done before stays, and the job can be resumed."""
