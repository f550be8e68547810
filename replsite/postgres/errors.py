"""Errors of the embedded PostgreSQL.

    EmbeddedPostgresError
    ├── BinariesMissing       no server programs were found
    ├── OtherMajorVersion     the data directory was made by another major version
    ├── FolderClosed          the folder or the programs cannot be used by the account that must use them
    └── StartFailed           initdb or the server ended, or did not answer in time
        └── DiskFull          because there is no space on the folder's disk

Every message says what happened, where, and what to do. The keeper reports an error to the process that started the
keeper, by the name of the error's class.
"""

from __future__ import annotations

__all__ = ["BinariesMissing", "DiskFull", "EmbeddedPostgresError", "FolderClosed", "OtherMajorVersion", "StartFailed"]


class EmbeddedPostgresError(Exception):
    """Base class of errors that make the embedded PostgreSQL unusable. The message says why and what to do."""


class BinariesMissing(EmbeddedPostgresError):
    """Raised when no server programs were found, or root has no ``setpriv``."""


class OtherMajorVersion(EmbeddedPostgresError):
    """Raised when the data directory was made by another major version of PostgreSQL."""


class FolderClosed(EmbeddedPostgresError):
    """Raised when the account that must use the folder and the programs is not permitted to use them."""


class StartFailed(EmbeddedPostgresError):
    """Raised when the server could not be made or started. The message has the end of the server's log."""


class DiskFull(StartFailed):
    """Raised when the server could not be made or started because its disk is full."""
