"""Errors of the embedded PostgreSQL.

    EmbeddedPostgresError
    ├── BinariesMissing       no server programs were found
    ├── OtherMajorVersion     the data directory was made by another major version
    ├── FolderClosed          the folder or the programs cannot be used by the account that must use them
    └── StartFailed           initdb or the server ended, or did not answer in time

Every message says what happened, where, and what to do. The keeper reports them to its starter by name.
"""

from __future__ import annotations

__all__ = ["BinariesMissing", "EmbeddedPostgresError", "FolderClosed", "OtherMajorVersion", "StartFailed"]


class EmbeddedPostgresError(Exception):
    """The embedded PostgreSQL cannot be used; the message says why and what to do."""


class BinariesMissing(EmbeddedPostgresError):
    """No server programs were found."""


class OtherMajorVersion(EmbeddedPostgresError):
    """The data directory was made by another major version of PostgreSQL."""


class FolderClosed(EmbeddedPostgresError):
    """The folder or the programs cannot be reached by the account that must use them."""


class StartFailed(EmbeddedPostgresError):
    """The server could not be made or started; the message carries the end of its log."""
