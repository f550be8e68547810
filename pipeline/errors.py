"""Errors of the pipeline. Every message says what is wrong, where, and what to do.

Each sentence is written where it is raised, unless its class makes it of parts.
"""

from __future__ import annotations

from streams.errors import SiteError
from streams.jobs.errors import UnusableArguments


class PipelineError(SiteError):
    """Base class of the other errors of this package."""


class JavaMissing(PipelineError):
    """Spark is needed and there is no Java that it can use."""


class SparkNotStarted(PipelineError):
    """Spark's JVM did not start, or PySpark has no Spark of its own."""


class UnusableSource(UnusableArguments):
    """A file or a database from which an import cannot read events."""


class ClusterUnfit(PipelineError):
    """The executors of a cluster cannot do the work."""


class MasterAway(PipelineError):
    """Nothing answers at the address of the Spark master."""


class SourceChanged(PipelineError):
    """A source file that has changed since the job began. Rows that were read from this file cannot be trusted."""


class DiskFull(PipelineError):
    """A disk is full. The job can be resumed when there is space."""


class LedgerMismatch(PipelineError):
    """A micro-batch that does not begin where the ledger of its table ends."""


class QueryRunning(PipelineError):
    """Another running process already keeps the same tables current."""


class QueryFailed(PipelineError):
    """The query of the live pipeline ended with an error. Its tables are as they were after its last batch."""


class SnapshotEnded(PipelineError):
    """The session that shared a snapshot with tasks has ended."""


class TaskFailed(PipelineError):
    """A task of a job failed. The work of other tasks stays, and the job can be resumed."""


class SparkFailed(TaskFailed):
    """A Spark job failed. Its work so far stays, and the job can be resumed."""


class RoomsKnown(PipelineError):
    """Rooms that are to be loaded are stored already. Nothing was loaded."""


class PackIncomplete(PipelineError):
    """A task that loads rooms got only a part of their rows. Nothing of its pack was loaded."""


class ExportRunning(PipelineError):
    """Another export writes to the same folder."""


class ExportDiffers(PipelineError):
    """An export has more or fewer rows than the database. The folder is as it was before."""


class ArchiveDamaged(PipelineError):
    """An archive that is incomplete or differs from what was written. Nothing was deleted or restored."""


class ArchiveElsewhere(PipelineError):
    """An archive that does not fit this database.

    The archive has positions that the database has not given out, or only the history of a room that is gone.
    """


class ArchiveTooLarge(PipelineError):
    """An archive that would have more files than a restore takes. Nothing was written or deleted."""


class ArchiveInUse(PipelineError):
    """An archive is to be removed while a job writes this archive. Nothing was removed."""


class FactsNotAppended(PipelineError):
    """Facts that Spark wrote to a stream could not be appended. No fact was appended."""


class MirrorBusy(PipelineError):
    """Another process moves the positions of the same mirror. Nothing of the batch was stored."""


class MirrorElsewhere(UnusableArguments):
    """A name under which another server is mirrored already."""


class SourceAway(PipelineError):
    """The database of a mirrored server cannot be read now. The mirror tries again."""


class SourceWentBack(PipelineError):
    """The database of a mirrored server was restored: it has not given out positions that are stored here already."""
