"""Errors of the stream engine (pure). Every message names the problem, the place (stream, writer, position) and the remedy.

Each sentence is written where it is raised.
"""

from __future__ import annotations


class SiteError(Exception):
    """Base class of the errors of this program whose message is for the person who asked: what is wrong, and what to do."""


class StreamError(SiteError):
    """Base of all errors of the stream engine."""


class BadJson(StreamError):
    """A text is not JSON, or JSON cannot represent a value."""


class UnknownVersion(StreamError):
    """A row's version lacks fields of this program's version, and no upcast adds them."""


class UnknownStream(StreamError):
    """The registry has no stream of that name."""


class UnknownTable(StreamError):
    """A model to which no stream is bound."""


class WriterError(StreamError):
    """This process cannot write now."""


class WriterNotAllowed(WriterError):
    """The settings do not let this instance write the stream."""


class WriterBusy(WriterError):
    """Another session holds a lock that the append needs, for too long."""


class BadInstanceName(WriterError, ValueError):
    """The name does not have the form of a writer's name."""


class ReservationError(StreamError):
    """A reservation was requested or used wrongly."""


class BadCount(ReservationError):
    """The number of IDs requested is not a whole number from one upwards."""


class ReservationNotOpen(ReservationError):
    """A reservation was used outside of its ``with`` block, or entered twice."""


class ReservationEnded(ReservationError):
    """A row was to be written under an ID that is already complete."""


class ForeignFact(ReservationError):
    """A row belongs to another stream, or its ID was not reserved for it."""


class BadLimit(StreamError, ValueError):
    """A page limit that is no number, or outside of the allowed range."""


class InTransaction(StreamError):
    """The call cannot work inside the caller's open transaction."""


class BadCacheKey(StreamError, TypeError):
    """The keys of a cached value are not strings."""


class UnusableFact(StreamError, ValueError):
    """The content of a fact has no wire form."""


class VersionConflict(StreamError):
    """The facts of a key are newer than the caller expected: another writer was first."""


class NotWritable(StreamError):
    """A manager that only reads was used to write."""


class SequenceBehind(StreamError):
    """The stream's sequence lies below a known position, so it gives out IDs that were given out before.

    Either two streams share a name, or a backup was restored, or the sequence was set back by hand. Nothing was
    appended.
    """


class SequenceBusy(StreamError):
    """A sequence cannot be moved: open transactions took IDs from it, or another session holds the stream's start lock.

    Open transactions matter only if the sequence is to be moved far forward.
    """


class SequenceUnfit(StreamError):
    """The stream's sequence was changed by hand (a cache, a cycle, another schema …), so that facts would be lost.

    Nothing was appended, or repaired. The message names the properties, and the statement that mends them.
    """


class WaitTimedOut(StreamError, TimeoutError):
    """A position that the caller waited for was not reached in time."""


class EpochChanged(StreamError):
    """A token is from before the database was restored, so it is not valid for the present facts."""


class TokenError(StreamError, ValueError):
    """A token cannot be read, or breaks a rule."""


class ResyncNeeded(StreamError):
    """Facts that a reader has not read were trimmed. The reader has missed them, and must be set to a new position."""


class NotTrimmable(StreamError):
    """The stream cannot be trimmed, because its facts are the data itself or are kept in memory."""


class TrimBusy(StreamError):
    """Another process trims the stream."""


class ReaderError(StreamError):
    """A named reader cannot go on, or was used wrongly."""


class BadHandler(ReaderError):
    """A handler was declared wrongly."""


class UnknownReader(ReaderError):
    """There is no handler and no stored cursor of that name."""


class FactsParked(ReaderError):
    """The reader has dead letters. They must be retried or dropped before the reader can be forgotten."""


class ReaderNameTaken(ReaderError):
    """Another live process runs the reader."""


class ReaderFenced(ReaderError):
    """This process lost its lock on the reader's name. Another process may run the reader now."""


class HandlerEnded(ReaderError):
    """A handler raised what ends a thread or a task without a word, such as ``SystemExit`` or ``CancelledError``."""


class HandlerFailed(ReaderError):
    """A handler failed on a fact, and the handler is declared to stop its reader in that case."""
