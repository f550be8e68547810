"""Errors of the replication protocol (pure). Every message says what is wrong, where, and what to do.

Each sentence is written where it is raised.
"""

from __future__ import annotations

from streams.errors import StreamError


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
