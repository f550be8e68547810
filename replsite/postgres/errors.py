"""Errors of the embedded PostgreSQL. Every message says what happened, where, and what to do.

Each sentence is written where it is raised.
"""

from __future__ import annotations


class EmbeddedPostgresError(Exception):
    """Base class of errors that make the embedded PostgreSQL unusable. The message says why and what to do."""


class BinariesMissing(EmbeddedPostgresError):
    """No server programs were found, or root has no ``setpriv``."""


class OtherMajorVersion(EmbeddedPostgresError):
    """The data directory was made by another major version of PostgreSQL."""


class FolderClosed(EmbeddedPostgresError):
    """The account that must use the folder and the programs is not permitted to use them."""


class StartFailed(EmbeddedPostgresError):
    """The server could not be made or started. The message has the end of the server's log."""


class DiskFull(StartFailed):
    """The server could not be made or started because its disk is full."""
