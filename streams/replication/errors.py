"""Errors of the wire (pure).

    ReplicationError (a StreamError)
    ├── CommandError
    │   ├── UnknownCommand       a line begins with a word that is no command
    │   ├── MalformedCommand     a known command with arguments that cannot be read
    │   └── UnsendableCommand    a command that no line can carry (LF, blank inside a field, too long, NaN)
    ├── IllegalMove              an input that the connection's state does not allow
    ├── BadAddress               a host, port or URL that cannot be used
    ├── BadCertificate           files of TLS that cannot be used
    ├── PortTaken                somebody else listens there
    ├── WrongRemote              the server says that it is another one than we want to follow
    ├── RedisRefused             the Redis server does not let us
    ├── ChannelLocked            a session that is none of ours keeps us from publishing on Redis
    ├── TooManyWriters           the server names more writers and streams than any real one has
    ├── DatabaseRestored         the database is another one than before: what was said of its positions means nothing now
    ├── CatchUpError             facts that were missed cannot be fetched now
    └── GapError                 facts that were missed cannot be had: whoever was asked refuses

Every message says what, where and what to do.
"""

from __future__ import annotations

from streams.errors import StreamError

__all__ = [
    "BadAddress",
    "BadCertificate",
    "CatchUpError",
    "ChannelLocked",
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
    """Base of all errors of the wire."""


class CommandError(ReplicationError):
    """A command that cannot be read or written."""


class UnknownCommand(CommandError):
    """The first word of a line is no command."""


class MalformedCommand(CommandError):
    """The arguments of a known command cannot be read."""


class UnsendableCommand(CommandError):
    """A command that no line can carry."""


class IllegalMove(ReplicationError):
    """An input that the state of the connection does not allow; always a mistake of the caller."""


class BadAddress(ReplicationError, ValueError):
    """A host, port or URL that cannot be used."""


class BadCertificate(ReplicationError):
    """Files of TLS that cannot be used: a certificate, its key, or authorities."""


class PortTaken(ReplicationError):
    """The port is in use."""


class WrongRemote(ReplicationError):
    """The server introduced itself with another name than the wanted one."""


class RedisRefused(ReplicationError):
    """The Redis server does not take our password, or does not let us do what we have to."""


class ChannelLocked(ReplicationError):
    """A session of a role that may not write holds the lock of those that publish on a Redis channel."""


class TooManyWriters(ReplicationError):
    """The server names more writers and streams than any real one has."""


class DatabaseRestored(ReplicationError):
    """The connection leads to a database of another epoch than before."""


class CatchUpError(ReplicationError):
    """Facts that were missed cannot be fetched now; another attempt may do."""


class GapError(ReplicationError):
    """Facts that were missed cannot be had from whom we ask; the message says why, and what to do."""
