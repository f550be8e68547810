"""What lies in ``<REPLSITE_DATA_DIR>/postgres`` and who holds its locks.

    data/          the cluster (PGDATA); the password of its superuser lies in it, so that both come into being at once
    users.lock     held shared by every process that uses the server, for its life
    start.lock     held by the process that is starting a keeper
    keeper.lock    held by the keeper, for its life
    server.lock    inherited by the server and all its children: free means that not one of them lives
    server.json    port and process of the server, and whether it is ready
    postgres.log   what initdb, the server and the keeper said; two files of bounded size

The locks are ``flock`` locks: the kernel lets go of them however their holder dies. Python opens files close-on-exec,
so programs that a holder starts (a JVM) never keep them, ``server.lock`` excepted; a forked child does, which is meant,
since it may use the database too.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

__all__ = ["Folder", "ServerRecord", "is_postgres_of", "own_like_folder"]


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The last thing a keeper said about the server; its port is asked for again at the next start."""

    port: int
    pid: int = 0
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of one embedded server."""

    path: Path

    @property
    def cluster(self) -> Path:
        """PGDATA."""
        return self.path / "data"

    @property
    def password_file(self) -> Path:
        """The superuser's password, made by the same rename as the cluster."""
        return self.cluster / "replsite.password"

    @property
    def log(self) -> Path:
        """The end of everything that was said."""
        return self.path / "postgres.log"

    @property
    def users_lock(self) -> Path:
        """Held shared by users, tried exclusively by the keeper."""
        return self.path / "users.lock"

    @property
    def start_lock(self) -> Path:
        """Held by the one process that starts a keeper."""
        return self.path / "start.lock"

    @property
    def keeper_lock(self) -> Path:
        """Held by the keeper."""
        return self.path / "keeper.lock"

    @property
    def server_lock(self) -> Path:
        """Held by every process of the server."""
        return self.path / "server.lock"

    def make(self) -> None:
        """Make the folder. Each file in it is closed to others; the server's account must pass through it."""
        if not self.path.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            self.path.chmod(0o711)

    def read_record(self) -> ServerRecord | None:
        """The server's record, or None when there is none that can be read."""
        try:
            return ServerRecord(**json.loads((self.path / "server.json").read_text()))
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
            return None

    def write_record(self, record: ServerRecord) -> None:
        """Replace the record in one step. Called by the keeper only."""
        fresh = self.path / "server.json.new"
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(asdict(record)))
        own_like_folder(fresh)
        fresh.replace(self.path / "server.json")

    def running_server(self) -> ServerRecord | None:
        """The server when it is ready, alive and has a keeper."""
        record = self.read_record()
        if record is None or not record.ready or not is_postgres_of(record.pid, self.cluster):
            return None
        return record if self.has_keeper() else None

    def has_keeper(self) -> bool:
        """Whether some process holds the keeper's lock."""
        descriptor = try_lock(self.keeper_lock, fcntl.LOCK_SH)
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def log_tail(self, lines: int = 12) -> str:
        """The last lines of the log, for error messages."""
        with suppress(FileNotFoundError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return "(the log is empty)"


def open_lock(path: Path) -> int:
    """Open a lock file, made when missing, closed to other accounts."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    own_like_folder(path)
    return descriptor


def try_lock(path: Path, kind: int) -> int | None:
    """Take a lock without waiting: its descriptor, or None when another holder is in the way."""
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one that ``path`` names: the folder may have been removed or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def own_like_folder(path: Path) -> None:
    """As root in a folder of an ordinary user: give that user the file, or they could not use the folder again."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def is_postgres_of(pid: int, cluster: Path) -> bool:
    """Whether the process is a living postmaster of this cluster, and not some process that was given an old number.

    The command line is looked at since any account may read it; postmasters keep theirs, their children do not.
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
