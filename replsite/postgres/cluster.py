"""Creates, starts and stops the server of one folder, or adopts a server that an earlier keeper left running.

Only the keeper uses this module. The keeper holds ``keeper.lock``, so no other process starts or stops this server. The
keeper may be killed at any point. A new cluster is made in a temporary folder and put in its place by one rename. The
next start recognises what a killed server left.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from replsite.postgres.account import Account, choose_account
from replsite.postgres.errors import DiskFull, OtherMajorVersion, StartFailed
from replsite.postgres.folder import Folder, is_postgres_of, own_like_folder, try_lock

__all__ = ["Cluster", "log_to", "shared_buffers_mb", "start_failure", "trim_log"]

START_SECONDS = 90.0
STOP_SECONDS = 60.0
LOG_BYTES = 8 * 1024 * 1024
_NO_SPACE = os.strerror(errno.ENOSPC)

# Written to postgresql.conf, where an operator may change them. Options that must hold are given on the command line.
_TUNING = """
# --- replsite: starting values, yours to change ---
shared_buffers = {buffers}MB
max_connections = 300
wal_buffers = {wal_buffers}MB
max_wal_size = 4GB
checkpoint_timeout = 15min
jit = off
log_checkpoints = off
timezone = 'UTC'
log_timezone = 'UTC'
"""
#: The superuser's password is random and long. To repeat its hash thousands of times would protect nothing, and would be
#: most of what a new connection costs a client. ``_LATER_PASSWORDS`` comes later in the file, so it counts for all others.
_QUICK_LOGIN = ("--set", "scram_iterations=1")
_LATER_PASSWORDS = "scram_iterations = 4096  # for passwords of roles that you make\n"
#: The first major version that has the setting.
_SETS_ITERATIONS = 16
_LEAST_BUFFERS_MB, _MOST_BUFFERS_MB = 128, 4096
#: Large enough that other transactions can write WAL while the WAL of a large transaction is flushed.
_MOST_WAL_BUFFERS_MB = 64
# Commits stay synchronous: a killed server loses nothing. Only a crash of the machine may lose data.
_UNSAFE_BUT_FAST = ("fsync=off", "full_page_writes=off")


def shared_buffers_mb(memory: int, *, durable: bool) -> int:
    """Returns ``shared_buffers`` in MB: an eighth of ``memory`` (bytes), within bounds.

    Event IDs are hashes, so their indexes are read at random places and need much memory. A server that is not durable
    serves tests and gets the lower bound. Tests empty tables all the time, and each time PostgreSQL searches all
    buffers.
    """
    return min(max(memory // 8 // 1024**2, _LEAST_BUFFERS_MB), _MOST_BUFFERS_MB) if durable else _LEAST_BUFFERS_MB


def _memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Returns the memory of the machine in bytes, or the limit of this process's container if the limit is less."""
    total: int = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # no such container, or one without a limit ("max")
        return min(total, int(limit.read_text()))
    return total


class Cluster:
    """The cluster of one folder, with the programs and the account that run it."""

    def __init__(self, folder: Folder, programs: Path, *, fsync: bool) -> None:
        self.folder = folder
        self._programs = programs
        self._fsync = fsync
        self._account: Account = choose_account(folder, programs)
        self._pid = 0
        self._child: subprocess.Popen[bytes] | None = None
        """None if the server was adopted from a keeper that died."""

    def make(self) -> None:
        """Creates the cluster if there is none.

        Raises OtherMajorVersion if there is a cluster of another major version, and StartFailed if initdb fails.
        """
        self._sweep()
        if self.folder.cluster.exists():
            self._check_version()
            return
        fresh = self.folder.path / f"data.new-{os.getpid()}"
        fresh.mkdir(mode=0o700)
        self._account.chown(fresh)
        password = self.folder.path / f"data.new-{os.getpid()}.password"
        _write_private(password, secrets.token_urlsafe(24))
        self._account.chown(password)
        where: list[str | Path] = ["-D", fresh, "-U", "postgres", "-A", "scram-sha-256", f"--pwfile={password}"]
        sets_iterations = int(self._major()[0]) >= _SETS_ITERATIONS
        quick = _QUICK_LOGIN if sets_iterations else ()
        how = ["-E", "UTF8", "--locale=C", *quick, *([] if self._fsync else ["--no-sync"])]
        with log_to(self.folder) as log:
            done = subprocess.run(
                self._account.command(self._programs / "initdb", *where, *how),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(), cwd="/", check=False,
            )  # fmt: skip
        if done.returncode != 0:
            raise self._failure("PostgreSQL's initdb failed")
        with (fresh / "postgresql.conf").open("a") as file:
            buffers = shared_buffers_mb(_memory(), durable=self._fsync)
            file.write(_TUNING.format(buffers=buffers, wal_buffers=min(buffers // 16, _MOST_WAL_BUFFERS_MB)))
            file.write(_LATER_PASSWORDS if sets_iterations else "")
        # The password is moved first. So whenever this process is killed, an existing cluster has its password.
        password.rename(fresh / self.folder.password_file.name)
        fresh.rename(self.folder.cluster)

    def start(self) -> None:
        """Adopts the server if it runs. Otherwise starts it, on the port that it had last if this port is free.

        Children of a killed server take a moment to notice that it is gone. No server is started before the last of
        these children has ended. Raises StartFailed if the server ends at its start, or does not answer within
        ``START_SECONDS``.
        """
        self._pid, self._child = 0, None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            found = self.folder.server()
            if found is not None and found.ready:
                self._pid = found.pid
                return
            # The children of a killed server hold this lock, too. The lock is free when the last of them has ended.
            if found is None and (lock := try_lock(self.folder.server_lock, fcntl.LOCK_EX)) is not None:
                try:
                    # The lock is free, so a server that this call started has ended. If another process took its port
                    # between the probe and the start, the start is repeated with another port.
                    if self._child is not None and "Address already in use" not in self.folder.log_tail():
                        raise self._failure("The embedded PostgreSQL did not start")
                    self._spawn(lock)
                finally:
                    os.close(lock)
            time.sleep(0.02)
        self.stop()
        raise self._failure(f"No server of the folder answers after {START_SECONDS:.0f} s")

    def _spawn(self, lock: int) -> None:
        """Starts a server that inherits ``lock``, the descriptor of ``server.lock``."""
        (self.folder.cluster / "postmaster.pid").unlink(missing_ok=True)  # the lock was free: its server is dead
        port = self._free_port()
        must = ["listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=", "logging_collector=off"]
        options = [part for option in (*must, *(() if self._fsync else _UNSAFE_BUT_FAST)) for part in ("-c", option)]
        with log_to(self.folder) as log:
            self._child = subprocess.Popen(
                self._account.command(self._programs / "postgres", "-D", self.folder.cluster, *options),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(), cwd="/",
                start_new_session=True, pass_fds=[lock],
            )  # fmt: skip
        self._pid = self._child.pid

    def _free_port(self) -> int:
        """Returns the port that the server had last, or any free port if that port is taken or not known.

        PostgreSQL keeps the last port in a file. Raises StartFailed if no port is free.
        """
        last: list[str] = []
        with suppress(OSError):
            last = re.findall(r'"port=(\d+)"', (self.folder.cluster / "postmaster.opts").read_text())
        for port in (*map(int, last[-1:]), 0):
            with socket.socket() as probe, suppress(OSError, OverflowError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
        raise self._failure("No port of 127.0.0.1 is free")

    def alive(self) -> bool:
        """Returns true if the server runs."""
        if self._child is not None:
            return self._child.poll() is None
        return is_postgres_of(self._pid, self.folder.cluster)

    def stop(self) -> None:
        """Stops the server by a fast shutdown, which writes everything.

        If the fast shutdown takes too long, tries an immediate shutdown, and at last SIGKILL.
        """
        # PostgreSQL's signals: SIGINT is the fast shutdown, SIGQUIT the immediate one, which needs recovery at the start.
        for how, seconds in ((signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)):
            if not self.alive():
                return
            with suppress(ProcessLookupError):  # it ended between the check and the signal
                os.kill(self._pid, how)
            _wait(lambda: not self.alive(), seconds)

    def _check_version(self) -> None:
        made_by = (self.folder.cluster / "PG_VERSION").read_text().strip()
        major, said = self._major()
        if major != made_by:
            raise OtherMajorVersion(
                f"The data directory {self.folder.cluster} was made by PostgreSQL {made_by}; the programs in"
                f" {self._programs} are {said}. Nothing was changed. Set REPLSITE_POSTGRES_BIN to the programs"
                f" of version {made_by}, move the data over with pg_dump and psql, or choose another REPLSITE_DATA_DIR."
            )

    def _major(self) -> tuple[str, str]:
        """Returns (major version of the programs, output of ``postgres --version``).

        The major version is "0" if the output has no number.
        """
        said = subprocess.run(
            self._account.command(self._programs / "postgres", "--version"), capture_output=True, text=True, check=True
        ).stdout.strip()
        major = re.search(r"\d+", said)
        return (major.group() if major else "0"), said

    def _sweep(self) -> None:
        """Removes the files that an initdb left when it was killed or failed."""
        for left in self.folder.path.glob("data.new-*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)  # that initdb may still write; the next start removes the rest
            else:
                left.unlink(missing_ok=True)

    def _failure(self, what: str) -> StartFailed:
        return start_failure(self.folder, what)


def start_failure(folder: Folder, what: str) -> StartFailed:
    """Returns the error for a start that failed: ``DiskFull`` if the disk is full, else ``StartFailed``."""
    tail = folder.log_tail()
    log = f"Folder: {folder.path}. Log: {folder.log}.\nIts last lines:\n{tail}"
    # The log is on the same disk, so its last lines may be missing.
    if _NO_SPACE in what or _NO_SPACE in tail or folder.is_disk_full():
        return DiskFull(
            f"{what}, because the disk of {folder.path} is full. Free space there, and it starts again by itself. {log}"
        )
    return StartFailed(f"{what}. {log}\nMend what it names, or set DATABASE_URL to use another server.")


@contextmanager
def log_to(folder: Folder) -> Iterator[int]:
    """Opens the log for appending, and yields its descriptor. A log that is too long is cut first."""
    trim_log(folder.log)
    descriptor = os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        own_like_folder(folder.log)
        yield descriptor
    finally:
        os.close(descriptor)


def trim_log(path: Path) -> None:
    """Cuts off the beginning of a log longer than ``LOG_BYTES``. Its last ``LOG_BYTES / 2`` bytes stay.

    After an error the log stays as it is until the next call, because a log must never stop a server or prevent its
    start.
    """
    with suppress(OSError):
        if path.stat().st_size <= LOG_BYTES:
            return
        path.with_suffix(".log.1").unlink(missing_ok=True)  # an older version kept two files
        # The file is cut in place, because the running server goes on appending to it. On a full disk, the cut frees the
        # space for the part that is kept. Lines that the server appends between read and truncate are lost.
        with path.open("rb+") as log:
            log.seek(-LOG_BYTES // 2, os.SEEK_END)
            end = log.read()
            log.truncate(0)
        with path.open("ab") as log:
            log.write(b"The beginning of this log was cut.\n" + end)


def _environment() -> dict[str, str]:
    """Returns the caller's environment without libpq's variables, and with the locale C.

    So the programs' messages are in English and can be recognised.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
