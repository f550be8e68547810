"""Keeps the embedded server of one folder running, from its start to its last user.

``launcher.py`` starts this module as ``python -m replsite.postgres.keeper``. The keeper detaches from its parent, reports
on standard output, and stays. It restarts a server that was killed. It stops the server when no process holds
``users.lock`` any more, however the last of these processes ended. If the keeper itself is killed, the server goes on.
The next process that uses the server starts a new keeper, which adopts the server. This module does not use Django.
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
from contextlib import suppress
from pathlib import Path

from replsite.postgres.cluster import Cluster, log_to, start_failure, trim_log
from replsite.postgres.errors import EmbeddedPostgresError
from replsite.postgres.folder import Folder, is_same_file, open_lock

__all__ = ["main"]

POLL_SECONDS = 0.25
LINGER_SECONDS = 1.0  # the next of several commands in a row finds the server still running


def main(arguments: list[str] | None = None) -> None:
    """Detaches from the caller, starts or adopts the server, reports the result, and keeps the server.

    The report is JSON on standard output: an empty object if the server is ready, else ``error`` (the class) and
    ``message``.
    """
    parser = argparse.ArgumentParser(prog="replsite.postgres.keeper", description="Keeps the embedded PostgreSQL.")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--no-fsync", action="store_true")
    parser.add_argument("--lock", type=int, required=True, help="descriptor of the keeper's lock, taken by the caller")
    options = parser.parse_args(arguments)
    os.set_inheritable(options.lock, False)  # never closed: the kernel releases the lock when this process ends
    if os.fork():
        os._exit(0)  # the caller waits for this process only; its child stays as the keeper
    os.setsid()
    folder, report = Folder(options.folder), {}
    try:
        _speak_to_log(folder, 2)
        keeper = _Keeper(folder, options.programs, fsync=not options.no_fsync)
        keeper.start()
    except EmbeddedPostgresError as error:
        report = {"error": type(error).__name__, "message": str(error)}
    except OSError as error:
        failure = start_failure(folder, f"The embedded PostgreSQL did not start: {error}")
        report = {"error": type(failure).__name__, "message": str(failure)}
    except Exception as error:  # noqa: BLE001 - the process that waits must get any error
        traceback.print_exc()
        report = {"error": type(error).__name__, "message": f"{type(error).__name__}: {error}"}
    with suppress(BrokenPipeError):  # the process that waits may be gone
        os.write(1, json.dumps(report).encode())
    if report:
        sys.exit(1)
    # The caller reads its pipe to the end. It would wait for as long as this process keeps standard output open.
    _speak_to_log(folder, 1)
    keeper.keep()


def _speak_to_log(folder: Folder, descriptor: int) -> None:
    """Redirects a descriptor of this process to the log."""
    with log_to(folder) as log:
        os.dup2(log, descriptor)


class _Keeper:
    """The supervisor of one folder's server. SIGTERM, SIGINT and SIGHUP end the supervisor, which stops the server."""

    def __init__(self, folder: Folder, programs: Path, *, fsync: bool) -> None:
        self._folder = folder
        self._cluster = Cluster(folder, programs, fsync=fsync)
        self._users = open_lock(folder.users_lock)
        self._stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stopped.set())

    def start(self) -> None:
        """Creates the cluster if it is missing, then starts or adopts its server."""
        self._cluster.make()
        self._cluster.start()

    def keep(self) -> None:
        """Restarts the server whenever it ends.

        Stops the server once no process uses it, its folder is gone, or a signal asks the keeper to end.
        """
        try:
            while not self._stopped.wait(POLL_SECONDS) and is_same_file(self._users, self._folder.users_lock):
                trim_log(self._folder.log)
                if self._unused():
                    break
                if not self._cluster.alive():
                    self.start()
        finally:
            self._cluster.stop()

    def _unused(self) -> bool:
        """Returns true if no process uses the server. The keeper then holds ``users.lock`` exclusively until the keeper ends.

        Meanwhile processes that want to use the server wait.
        """
        if not self._take_users_lock():
            return False
        # The lock is free for a moment, so that a new user can take it instead of waiting for a stop and a start.
        fcntl.flock(self._users, fcntl.LOCK_UN)
        self._stopped.wait(LINGER_SECONDS)
        return self._take_users_lock()

    def _take_users_lock(self) -> bool:
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


if __name__ == "__main__":
    main()
