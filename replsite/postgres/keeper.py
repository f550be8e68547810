"""The keeper: the process that looks after the embedded server of one folder, from its start to its last user.

Started by ``launcher.py`` as ``python -m replsite.postgres.keeper``; it leaves its parent, reports through a pipe, and
stays. It restarts a server that was killed, and stops it when nobody holds ``users.lock`` any more, however the last
holder went. If the keeper itself is killed, the server goes on, and the next user's keeper adopts it.
Knows nothing of Django.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from replsite.postgres.cluster import Cluster, Postmaster, log_to, trim_log
from replsite.postgres.errors import EmbeddedPostgresError, KeeperBusy
from replsite.postgres.folder import Folder, ServerRecord, is_same_file, open_lock, try_lock

__all__ = ["main"]

POLL_SECONDS = 0.25
LINGER_SECONDS = 1.0  # commands that run one after the other find the server still there


def main(arguments: list[str] | None = None) -> None:
    """Detach, start or adopt the server, report, keep it."""
    parser = argparse.ArgumentParser(prog="replsite.postgres.keeper", description="Keeps the embedded PostgreSQL.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--no-fsync", action="store_true")
    parser.add_argument("--report", type=int, required=True, help="descriptor of the pipe to the process that waits")
    options = parser.parse_args(arguments)
    os.set_inheritable(options.report, False)
    if os.fork():
        os._exit(0)  # the caller reaps this half at once; the other half belongs to nobody
    os.setsid()
    folder = Folder(options.folder)
    try:
        keeper = _Keeper(folder, options.programs, fsync=not options.no_fsync)
        keeper.start()
    except EmbeddedPostgresError as error:
        _report(options.report, {"error": type(error).__name__, "message": str(error)})
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - whatever it was, the process that waits must hear of it
        traceback.print_exc()
        _report(options.report, {"error": type(error).__name__, "message": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    _report(options.report, {})
    keeper.keep()


class _Keeper:
    """Holds the keeper's lock for its life."""

    def __init__(self, folder: Folder, programs: Path, *, fsync: bool) -> None:
        lock = try_lock(folder.keeper_lock, fcntl.LOCK_EX)
        if lock is None:
            raise KeeperBusy(f"Another keeper has {folder.path}.")
        self._lock = lock  # never closed: the kernel lets go of it when this process ends
        self._folder = folder
        self._speak_to_log()
        self._cluster = Cluster(folder, programs, fsync=fsync)
        self._users = open_lock(folder.users_lock)
        self._stopped = threading.Event()
        self._postmaster: Postmaster
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stopped.set())

    def start(self) -> None:
        """Make the cluster when missing, then start or adopt its server."""
        self._cluster.make()
        before = self._folder.read_record()
        self._postmaster = self._cluster.start(before.port if before else None)
        self._folder.write_record(ServerRecord(self._postmaster.port, self._postmaster.pid, ready=True))

    def keep(self) -> None:
        """Until nobody uses the server, the folder is gone, or this process is told to end."""
        try:
            while not self._stopped.wait(POLL_SECONDS) and is_same_file(self._users, self._folder.users_lock):
                trim_log(self._folder.log)
                if self._unused():
                    break
                if not self._postmaster.alive():
                    self.start()
        finally:
            self._postmaster.stop()
            if is_same_file(self._users, self._folder.users_lock):
                self._folder.write_record(ServerRecord(self._postmaster.port))

    def _unused(self) -> bool:
        """Whether no process uses the server. If so the lock stays taken: new users wait until this keeper is gone."""
        if not self._take_users_lock():
            return False
        fcntl.flock(self._users, fcntl.LOCK_UN)
        self._stopped.wait(LINGER_SECONDS)
        return self._take_users_lock()

    def _take_users_lock(self) -> bool:
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _speak_to_log(self) -> None:
        """Leave the caller's terminal: what this process prints goes where the server's words go."""
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        with log_to(self._folder) as log:
            os.dup2(log, 1)
            os.dup2(log, 2)


def _report(descriptor: int, words: dict[str, str]) -> None:
    """Tell the process that waits; it may be gone, which changes nothing."""
    try:
        os.write(descriptor, json.dumps(words).encode())
    except BrokenPipeError:
        sys.stderr.write("The process that started this keeper is gone.\n")
    os.close(descriptor)


if __name__ == "__main__":
    main()
