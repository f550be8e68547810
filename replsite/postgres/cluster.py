"""Makes, starts, adopts and stops the server of one folder.

Called by the keeper alone, which holds ``keeper.lock``: nobody else starts or stops this server. Everything may be
killed at any point: the cluster appears by one rename, and what a killed server left is recognised at the next start.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg2

from replsite.postgres.account import Account, choose_account
from replsite.postgres.errors import OtherMajorVersion, StartFailed
from replsite.postgres.folder import Folder, ServerRecord, is_postgres_of, own_like_folder, try_lock

__all__ = ["Cluster", "Postmaster", "connection_parameters", "log_to", "shared_buffers_mb"]

START_SECONDS = 90.0
STOP_SECONDS = 60.0
LOG_BYTES = 4 * 1024 * 1024

# Kept in postgresql.conf, where an operator may change them; what must hold is given on the command line.
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
_LEAST_BUFFERS_MB, _MOST_BUFFERS_MB = 128, 4096
#: Others go on writing WAL while a large transaction's is flushed.
_MOST_WAL_BUFFERS_MB = 64
# Commits stay synchronous: a killed server loses nothing, only a crash of the machine may.
_UNSAFE_BUT_FAST = ("fsync=off", "full_page_writes=off")


@dataclass(frozen=True, slots=True)
class Postmaster:
    """A server process: started by this keeper (``child``), or adopted from one that died."""

    pid: int
    port: int
    cluster: Path
    child: subprocess.Popen[bytes] | None = None

    def alive(self) -> bool:
        """Whether it still runs; reaps it when it was our child and does not."""
        if self.child is not None:
            return self.child.poll() is None
        return is_postgres_of(self.pid, self.cluster)

    def stop(self) -> None:
        """Stop it: first letting it write everything (fast), then ever more roughly."""
        for how, seconds in ((signal.SIGINT, STOP_SECONDS), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)):
            if not self.alive():
                return
            with suppress(ProcessLookupError):  # it ended between the look and the signal
                os.kill(self.pid, how)
            _wait(lambda: not self.alive(), seconds)


def shared_buffers_mb(memory: int, *, durable: bool) -> int:
    """An eighth of the memory (bytes), within bounds: indexes of event IDs, which are hashes, are met at random.

    A server that is not durable is one of tests: they empty tables all the time, which looks through all buffers.
    """
    return min(max(memory // 8 // 1024**2, _LEAST_BUFFERS_MB), _MOST_BUFFERS_MB) if durable else _LEAST_BUFFERS_MB


def _memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes that the machine has, or the container that this is."""
    total: int = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # no such container, or one without a limit ("max")
        return min(total, int(limit.read_text()))
    return total


class Cluster:
    """The cluster of one folder and the programs that run it."""

    def __init__(self, folder: Folder, programs: Path, *, fsync: bool) -> None:
        self.folder = folder
        self._programs = programs
        self._fsync = fsync
        self._account: Account = choose_account(folder, programs)

    def make(self) -> None:
        """Make the cluster unless it exists; raises OtherMajorVersion when it is of another one."""
        self._sweep()
        if self.folder.cluster.exists():
            self._check_version()
            return
        fresh = self.folder.path / f"data.new-{os.getpid()}"
        fresh.mkdir(mode=0o700)
        self._account.own(fresh)
        password = self.folder.path / f"data.new-{os.getpid()}.password"
        _write_private(password, secrets.token_urlsafe(24))
        self._account.own(password)
        arguments: list[str | Path] = [
            "-D",
            fresh,
            "-U",
            "postgres",
            "-A",
            "scram-sha-256",
            f"--pwfile={password}",
            "-E",
            "UTF8",
        ]
        arguments += ["--locale=C", *([] if self._fsync else ["--no-sync"])]
        with log_to(self.folder) as log:
            done = subprocess.run(
                self._account.command(self._programs / "initdb", *arguments),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(), cwd="/", check=False,
            )  # fmt: skip
        if done.returncode != 0:
            raise StartFailed(self._failure("PostgreSQL's initdb failed"))
        with (fresh / "postgresql.conf").open("a") as file:
            buffers = shared_buffers_mb(_memory(), durable=self._fsync)
            file.write(_TUNING.format(buffers=buffers, wal_buffers=min(buffers // 16, _MOST_WAL_BUFFERS_MB)))
        password.rename(fresh / self.folder.password_file.name)
        fresh.rename(self.folder.cluster)

    def start(self, port: int | None) -> Postmaster:
        """The running server: adopted when one is there, else started, on ``port`` when that is free.

        Children of a killed server take a moment to see that it is gone; nothing is started before the last one went.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            found = self._living_postmaster()
            if found is not None and self._answers(found):
                return found
            if found is None and (lock := try_lock(self.folder.server_lock, fcntl.LOCK_EX)) is not None:
                started = self._spawn(port if port and _is_free(port) else _free_port(), lock)
                if self._becomes_ready(started):
                    return started
                started.stop()
                if "Address already in use" not in self.folder.log_tail():  # else the port was taken meanwhile
                    raise StartFailed(self._failure("The embedded PostgreSQL did not start"))
            time.sleep(0.05)
        raise StartFailed(self._failure("Processes of an earlier server hold the folder and do not answer"))

    def _spawn(self, port: int, lock: int) -> Postmaster:
        """Start the server and leave ``lock`` to it alone."""
        (self.folder.cluster / "postmaster.pid").unlink(missing_ok=True)  # the lock was free: nobody lives who wrote it
        must = ["listen_addresses=127.0.0.1", f"port={port}", "unix_socket_directories=", "logging_collector=off"]
        options = [part for option in (*must, *(() if self._fsync else _UNSAFE_BUT_FAST)) for part in ("-c", option)]
        try:
            with log_to(self.folder) as log:
                child = subprocess.Popen(
                    self._account.command(self._programs / "postgres", "-D", self.folder.cluster, *options),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(), cwd="/",
                    start_new_session=True, pass_fds=[lock],
                )  # fmt: skip
        finally:
            os.close(lock)
        return Postmaster(child.pid, port, self.folder.cluster, child)

    def _living_postmaster(self) -> Postmaster | None:
        """The server that ``postmaster.pid`` names, when that process is one of this cluster."""
        try:
            lines = (self.folder.cluster / "postmaster.pid").read_text().splitlines()
            pid, port = int(lines[0]), int(lines[3])
        except (FileNotFoundError, ValueError, IndexError):
            return None
        return Postmaster(pid, port, self.folder.cluster) if is_postgres_of(pid, self.folder.cluster) else None

    def _becomes_ready(self, started: Postmaster) -> bool:
        """Wait until the server answers or ends."""
        _wait(lambda: not started.alive() or self._answers(started), START_SECONDS)
        return started.alive() and self._answers(started)

    def _answers(self, postmaster: Postmaster) -> bool:
        parameters = connection_parameters(self.folder, ServerRecord(postmaster.port))
        try:
            with closing(psycopg2.connect(**parameters, dbname="postgres", connect_timeout=2)):
                return True
        except psycopg2.OperationalError:
            return False

    def _check_version(self) -> None:
        made_by = (self.folder.cluster / "PG_VERSION").read_text().strip()
        said = subprocess.run(
            self._account.command(self._programs / "postgres", "--version"), capture_output=True, text=True, check=True
        ).stdout
        major = re.search(r"\d+", said)
        if major is None or major.group() != made_by:
            raise OtherMajorVersion(
                f"The data directory {self.folder.cluster} was made by PostgreSQL {made_by}; the programs in"
                f" {self._programs} are {said.strip()}. Nothing was changed. Set REPLSITE_POSTGRES_BIN to the programs"
                f" of version {made_by}, move the data over with pg_dump and psql, or choose another REPLSITE_DATA_DIR."
            )

    def _sweep(self) -> None:
        """Remove what an earlier initdb left when it was killed."""
        for left in self.folder.path.glob("data.new-*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)  # such an initdb may still be ending; the next start goes on
            else:
                left.unlink(missing_ok=True)

    def _failure(self, what: str) -> str:
        return (
            f"{what}. Folder: {self.folder.path}. Log: {self.folder.log}, its last lines:\n{self.folder.log_tail()}\n"
            "Mend what it names, or set DATABASE_URL to use another server."
        )


def connection_parameters(folder: Folder, record: ServerRecord) -> dict[str, str | int]:
    """What libpq needs to reach the server, but for the database's name."""
    password = folder.password_file.read_text()
    return {"host": "127.0.0.1", "port": record.port, "user": "postgres", "password": password}


def log_to(folder: Folder) -> _Log:
    """The log, opened for appending; once too long, it becomes ``postgres.log.1`` and starts anew."""
    return _Log(folder.log)


class _Log:
    """An open log file as a context manager that gives the number subprocess wants."""

    def __init__(self, path: Path) -> None:
        trim_log(path)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        own_like_folder(path)

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def trim_log(path: Path) -> None:
    """Keep the log bounded. It is copied and cut, not renamed: the running server keeps appending to the same file.

    Where there is no room for a copy the log's end stays in its place. A log is no reason to stop a server, or not to start it:
    what cannot be done is left for the next time.
    """
    with suppress(OSError):
        if path.stat().st_size <= LOG_BYTES:
            return
        before = path.with_suffix(".log.1")
        try:
            _copy_log(path, before)
            os.truncate(path, 0)
        except OSError as error:
            with suppress(OSError):  # half a copy takes the room that there is
                before.unlink()
            _cut_log(path, f"The beginning of this log is gone: {before} cannot be written: {error.strerror}.")


def _copy_log(path: Path, before: Path) -> None:
    """Opening cuts the older copy, so there is as much room as that took."""
    descriptor = os.open(before, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as copy, path.open("rb") as log:
        os.fchmod(descriptor, 0o600)
        own_like_folder(before)
        shutil.copyfileobj(log, copy)


def _cut_log(path: Path, why: str) -> None:
    """Keep the last lines of a log in its place: cutting it makes the room that they take."""
    with path.open("rb+") as log:
        log.seek(-min(LOG_BYTES // 4, log.seek(0, os.SEEK_END)), os.SEEK_END)
        end = log.read()
        log.truncate(0)
    with path.open("ab") as log:
        log.write(f"{why}\n".encode() + end)


def _environment() -> dict[str, str]:
    """The caller's environment without libpq's variables, and with messages that can be recognised."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
