"""Errors of the replication protocol (pure).

    ReplicationError (a StreamError)
    ├── CommandError
    │   ├── UnknownCommand       the first word of a line is no command
    │   ├── MalformedCommand     the arguments of a known command cannot be parsed
    │   └── UnsendableCommand    a command cannot be written as a line (LF, blank inside a field, too long, NaN)
    ├── IllegalMove              the state of the connection does not allow a call
    ├── BadAddress               a host, port or URL cannot be used
    ├── BadCertificate           TLS files cannot be used
    ├── BadRights                the rights of certificates cannot be read
    ├── PortTaken                the port is already in use
    ├── WrongRemote              the server has another name than the one that we want to follow
    ├── RedisRefused             the Redis server refuses our password or a command
    ├── TooManyWriters           the server names more writers than any real server has
    ├── DatabaseRestored         the database is in another epoch than before, so earlier positions mean nothing
    ├── CatchUpError             missed facts cannot be fetched now
    └── GapError                 missed facts cannot be fetched from the given source, not even later

Every message says what is wrong, where, and what to do.
"""

from __future__ import annotations

from streams.errors import StreamError

__all__ = [
    "BadAddress",
    "BadCertificate",
    "BadRights",
    "CatchUpError",
    "CommandError",
    "DatabaseRestored",
    "GapError",
    "IllegalMove",
    "MalformedCommand",
    "PortTaken",
    "RedisRefused",
    "ReplicationError",
    "TooManyWriters",
    "UnknownCommand",
    "UnsendableCommand",
    "WrongRemote",
]


class ReplicationError(StreamError):
    """The base class of all errors of the replication protocol."""


class CommandError(ReplicationError):
    """A command that cannot be parsed, or cannot be written as a line."""


class UnknownCommand(CommandError):
    """A received line whose first word is not the word of a command."""


class MalformedCommand(CommandError):
    """A known command whose arguments cannot be parsed."""


class UnsendableCommand(CommandError):
    """A command that cannot be written as a line."""


class IllegalMove(ReplicationError):
    """A call that the state of the connection does not allow. The error is always a mistake in the calling code."""


class BadAddress(ReplicationError, ValueError):
    """A host, port or URL that cannot be used."""


class BadCertificate(ReplicationError):
    """TLS files that cannot be used: a certificate, its key, or the authorities."""


class BadRights(ReplicationError, ValueError):
    """Rights of certificates that cannot be read."""


class PortTaken(ReplicationError):
    """A port that is already in use."""


class WrongRemote(ReplicationError):
    """A server whose name is not the name of the server that we want to follow."""


class RedisRefused(ReplicationError):
    """A Redis server that refuses our password or one of our commands."""


class TooManyWriters(ReplicationError):
    """A server that names more writers, over all streams, than any real server has."""


class DatabaseRestored(ReplicationError):
    """A database in another epoch than before: it was restored, or replaced by another database."""


class CatchUpError(ReplicationError):
    """Missed facts that cannot be fetched now. Another attempt may succeed."""


class GapError(ReplicationError):
    """Missed facts that the follower's source can never provide. The error message says why, and what to do."""
