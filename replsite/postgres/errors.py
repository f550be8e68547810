"""Errors of the embedded PostgreSQL.

    EmbeddedPostgresError
    ├── BinariesMissing       no server programs were found
    ├── OtherMajorVersion     the data directory was made by another major version
    ├── FolderClosed          the folder or the programs cannot be used by the account that must use them
    ├── StartFailed           initdb or the server ended, or did not answer in time
    └── KeeperBusy            another keeper has the folder (expected during simultaneous starts)

Every message says what happened, where, and what to do. They travel as text from the keeper to its starter.
"""

from __future__ import annotations

__all__ = [
    "BinariesMissing",
    "EmbeddedPostgresError",
    "FolderClosed",
    "KeeperBusy",
    "OtherMajorVersion",
    "StartFailed",
    "error_from",
]


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


class KeeperBusy(EmbeddedPostgresError):
    """Another keeper already looks after this folder."""


_BY_NAME = {kind.__name__: kind for kind in (BinariesMissing, OtherMajorVersion, FolderClosed, StartFailed, KeeperBusy)}


def error_from(name: str, message: str) -> EmbeddedPostgresError:
    """The error that a keeper reported by the name of its class."""
    return _BY_NAME.get(name, EmbeddedPostgresError)(message)
