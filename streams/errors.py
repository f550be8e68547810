"""Errors of the stream engine (pure).

    StreamError
    ├── UnknownStream            the registry has no stream of that name
    ├── UnknownTable             no stream is bound to the model
    ├── WriterError
    │   ├── WriterNotAllowed     the settings do not let this instance write the stream
    │   ├── WriterNameTaken      another live process holds the name
    │   ├── WriterBusy           a transaction of an earlier process with this name is still open
    │   ├── WriterDraining       this process is leaving its streams: no new reservations
    │   ├── WriterRetired        this process has left its streams because it was asked to
    │   ├── UnknownWriter        no process of that name ever wrote
    │   ├── WriterFenced         this process lost its lock: another one may hold the name now
    │   └── BadInstanceName      the name does not have the form of a writer's name
    ├── ReservationError
    │   ├── BadCount             the number of IDs is not a whole number from one upwards
    │   ├── ReservationNotOpen   a reservation was used outside of its ``with`` block
    │   ├── ReservationEnded     a row was to be written under an ID that is already complete
    │   └── ForeignFact          a row belongs to another stream, or its ID was not reserved for it
    ├── BadLimit                 the limit of a page is not a number that is allowed
    ├── InTransaction            a call cannot work inside the caller's open transaction
    ├── BadCacheKey              the key of a cached value is not made of strings
    ├── UnusableFact             the content of a fact has no wire form
    ├── BadJson                  a text is not JSON, or JSON cannot represent a value
    ├── VersionConflict          the facts of a key are newer than the caller expected
    ├── UnknownVersion           a row's version lacks fields of this program's version
    ├── FactIsFixed              a fact was to be changed or deleted, or saved without a reservation
    ├── NotWritable              a manager that only reads was used to write
    ├── SequenceBehind           the stream's sequence gives out IDs that were given out before
    ├── SequenceBusy             open transactions keep a sequence from being moved
    ├── SequenceUnfit            the stream's sequence has properties with which facts would be lost
    ├── WaitTimedOut             a position that a caller waited for was not reached in time
    ├── EpochChanged             the token is from before the database was restored
    ├── ResyncNeeded             facts that a reader has not read were trimmed
    ├── NotTrimmable             the stream's facts are the data itself, or are kept in memory
    ├── TrimBusy                 another process trims the stream
    ├── ReaderError
    │   ├── BadHandler           a handler was declared wrongly
    │   ├── UnknownReader        there is no handler and no stored cursor of that name
    │   ├── FactsParked          the reader has dead letters, so it cannot be forgotten
    │   ├── ReaderNameTaken      another live process runs the reader
    │   ├── ReaderFenced         this process lost its lock: another one may run the reader now
    │   └── HandlerFailed        a handler failed on a fact, and its reader is declared to stop then
    └── TokenError               a token cannot be read, or breaks a rule

Every message names the problem, the place (stream, writer, position) and the remedy.
"""

from __future__ import annotations

__all__ = [
    "BadCacheKey",
    "BadCount",
    "BadHandler",
    "BadInstanceName",
    "BadJson",
    "BadLimit",
    "EpochChanged",
    "FactIsFixed",
    "ForeignFact",
    "HandlerFailed",
    "InTransaction",
    "NotTrimmable",
    "NotWritable",
    "ReaderError",
    "ReaderFenced",
    "ReaderNameTaken",
    "ReservationEnded",
    "ReservationError",
    "ReservationNotOpen",
    "ResyncNeeded",
    "SequenceBehind",
    "SequenceBusy",
    "SequenceUnfit",
    "StreamError",
    "TokenError",
    "TrimBusy",
    "UnknownReader",
    "UnknownStream",
    "UnknownTable",
    "UnknownVersion",
    "UnknownWriter",
    "UnusableFact",
    "VersionConflict",
    "WaitTimedOut",
    "WriterBusy",
    "WriterDraining",
    "WriterError",
    "WriterFenced",
    "WriterNameTaken",
    "WriterNotAllowed",
    "WriterRetired",
]


class StreamError(Exception):
    """Base of all errors of the stream engine."""


class BadJson(StreamError):
    """A text is not JSON, or JSON cannot represent a value."""


class UnknownVersion(StreamError):
    """A row's version lacks fields of this program's version, and no upcast adds them."""


class UnknownStream(StreamError):
    """The registry has no stream of that name."""


class UnknownTable(StreamError):
    """The error for a model to which no stream is bound."""


class WriterError(StreamError):
    """This process cannot write now."""


class WriterNotAllowed(WriterError):
    """The settings do not let this instance write the stream."""


class WriterNameTaken(WriterError):
    """Another live process holds the writer's name."""


class WriterBusy(WriterError):
    """The writer cannot start now.

    A transaction of an earlier process with this name is still open, or another session holds the lock that a writer
    needs to enter a stream.
    """


class WriterDraining(WriterError):
    """This process is leaving its streams. Open reservations become complete, and new ones are refused."""


class WriterRetired(WriterError):
    """This process has left its streams because it was asked to. A new process may take the name."""


class UnknownWriter(WriterError):
    """No process of that name ever wrote."""


class WriterFenced(WriterError):
    """This process lost its lock on its name. Another process may hold the name now."""


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
    """The error for a page limit that is no number, or outside of the allowed range."""


class InTransaction(StreamError):
    """The call cannot work inside the caller's open transaction."""


class BadCacheKey(StreamError, TypeError):
    """The key of a cached value is not made of strings."""


class UnusableFact(StreamError, ValueError):
    """The content of a fact has no wire form."""


class VersionConflict(StreamError):
    """The facts of a key are newer than the caller expected: another writer was first."""


class FactIsFixed(StreamError):
    """A fact was to be changed or deleted, or saved without a reservation."""


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


class HandlerFailed(ReaderError):
    """A handler failed on a fact, and the handler is declared to stop its reader in that case."""
