"""Describes the folder ``<REPLSITE_DATA_DIR>/postgres``: its files, and which process holds which of its locks.

    data/          the cluster (PGDATA), and in it the password of its superuser, so that both appear at once
    users.lock     held shared by every process that uses the server, as long as the process lives
    keeper.lock    held by the keeper while it lives; the process that starts the keeper takes the lock and hands it on
    server.lock    inherited by the server and all its children; free means that none of them lives
    postgres.log   the output of initdb, the server and the keeper; its beginning is cut off when it is too long

The locks are ``flock`` locks: the kernel releases them however their holder dies. Python opens files close-on-exec, so
a program that a holder starts (a JVM) does not inherit its locks. Only ``keeper.lock`` and ``server.lock`` are handed
on, to the keeper and the server. A forked child keeps the locks of its parent. This is intended, because the child may
use the database, too. PostgreSQL itself writes the process ID and port of the server into ``data/postmaster.pid``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Folder", "Server", "is_postgres_of", "is_same_file", "open_lock", "own_like_folder", "try_lock"]

#: PostgreSQL's own size of a file of WAL.
WAL_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Server:
    """A server process, as its ``postmaster.pid`` describes it. It accepts connections once it is ``ready``."""

    pid: int
    port: int
    ready: bool


class Folder:
    """The folder of one embedded server, with the paths in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cluster = path / "data"
        self.password_file = self.cluster / "replsite.password"
        self.log = path / "postgres.log"
        self.users_lock = path / "users.lock"
        self.keeper_lock = path / "keeper.lock"
        self.server_lock = path / "server.lock"

    def make(self) -> None:
        """Creates the folder if it is missing.

        The server may run under another account, so other accounts may pass through the folder. Each file in it is
        closed to them.
        """
        if not self.path.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o711)

    def server(self) -> Server | None:
        """Returns the living server of this cluster, also while it starts up. Returns None if no server of this cluster lives."""
        try:
            lines = (self.cluster / "postmaster.pid").read_text().splitlines()
            found = Server(int(lines[0]), int(lines[3]), lines[7].strip() == "ready")
        except (FileNotFoundError, NotADirectoryError, ValueError, IndexError):
            return None
        return found if is_postgres_of(found.pid, self.cluster) else None

    def running_server(self) -> Server | None:
        """Returns the server if it accepts connections and has a keeper, else None."""
        found = self.server()
        return found if found is not None and found.ready and self.has_keeper() else None

    def has_keeper(self) -> bool:
        """Returns true if a process holds the keeper's lock."""
        descriptor = try_lock(self.keeper_lock, fcntl.LOCK_SH)
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def is_disk_full(self) -> bool:
        """Returns true if the disk has no space for another file of WAL, without which a server cannot recover or go on."""
        try:
            return shutil.disk_usage(self.path).free < WAL_FILE_BYTES
        except OSError:
            return False

    def log_tail(self, lines: int = 12) -> str:
        """Returns the last lines of the log, for error messages."""
        with suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return "(the log is empty)"


def open_lock(path: Path) -> int:
    """Opens a lock file and returns its descriptor. A missing file is created, closed to other accounts."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    own_like_folder(path)
    return descriptor


def try_lock(path: Path, kind: int) -> int | None:
    """Takes a lock, ``LOCK_SH`` or ``LOCK_EX``, without waiting.

    Returns the descriptor of the lock file, or None if another process holds the lock in a way that excludes ``kind``.
    """
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_same_file(descriptor: int, path: Path) -> bool:
    """Returns true if ``path`` still names the open file. The folder may have been removed or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def own_like_folder(path: Path) -> None:
    """Gives a file to the owner of its folder, if this process is root.

    If root kept the file, the owner of the folder could not use the folder again.
    """
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def is_postgres_of(pid: int, cluster: Path) -> bool:
    """Returns true if the process is a living postmaster of this cluster.

    After the postmaster's end, another process may get its process ID. So the command line is compared, which any
    account may read. A postmaster keeps its command line; its children change theirs.
    """
    if pid <= 0:
        return False
    try:
        process = psutil.Process(pid)
        arguments = process.cmdline()
        if process.status() == psutil.STATUS_ZOMBIE or "-D" not in arguments[:-1]:
            return False
    except psutil.Error:
        return False
    folder = arguments[arguments.index("-D") + 1]
    return Path(arguments[0]).name.startswith("post") and Path(folder).resolve() == cluster.resolve()
