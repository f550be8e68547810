"""A copy of the session's server by the commands of ``docs/how-to/back-up-and-restore.md``."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
from django.db import connection

from replsite.postgres.account import Account, choose_account
from replsite.postgres.folder import Folder
from tests.deployment.places import postgres_program
from tests.support.ports import free_ports
from tests.support.session import PROJECT
from tests.support.waiting import DEADLINE_SECONDS, wait_until

PAGE = (PROJECT / "docs/how-to/back-up-and-restore.md").read_text()


def line(start: str, text: str = PAGE) -> list[str]:
    """The words of the one command of the page that begins so."""
    found = [one for one in text.splitlines() if one.startswith(start)]
    assert len(found) == 1, (start, found)
    return re.findall(r'"[^"]*"|\S+', found[0])


class Copy:
    """A base backup of the session's server, made by the page's command, that is started as a server of its own.

    A replication slot keeps the server's WAL for it. Without one, a test beside this one drops a database, the server makes
    a checkpoint and removes older WAL, and a standby that still needs it waits for ever.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.where = {**connection.settings_dict}
        self.data = folder / "base"
        self.port = free_ports(1)[0]
        folder.chmod(0o755)
        programs = Path(postgres_program("postgres")).parent
        self.account: Account = choose_account(Folder(folder), programs)
        self.account.chown(folder)
        words = [{"/var/lib/postgresql/base": str(self.data)}.get(word, word) for word in line("pg_basebackup ")[1:-2]]
        where = f"host={self.where['HOST']} port={self.where['PORT']} user={self.where['USER']}"
        self.process: subprocess.Popen[bytes] | None = None
        self._slot = f"copy_{self.port}"
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_create_physical_replication_slot(%s, true)", [self._slot])
        try:
            self.run("pg_basebackup", *words, "--no-sync", "-S", self._slot, *options, "-d", where)
        except BaseException:
            self._drop_slot()
            raise
        with connection.cursor() as cursor:  # older WAL goes, as it may at any time; what the copy needs stays
            for _ in range(2):
                cursor.execute("SELECT pg_switch_wal()")
                cursor.execute("CHECKPOINT")

    def run(self, program: str, *words: str) -> None:
        environment = {**os.environ, "PGPASSWORD": self.where["PASSWORD"]}
        command = self.account.command(postgres_program(program), *words)
        done = subprocess.run(
            command, env=environment, cwd="/", check=False, timeout=2 * DEADLINE_SECONDS, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    def say(self, text: str) -> None:
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.write(text)

    def start(self) -> None:
        options = ["listen_addresses=127.0.0.1", f"port={self.port}", "unix_socket_directories=", "fsync=off"]
        options += ["shared_buffers=32MB", "logging_collector=off"]
        words = [part for option in options for part in ("-c", option)]
        command = self.account.command(postgres_program("postgres"), "-D", str(self.data), *words)
        with (self.data.parent / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/")
        wait_until(self.answers, what="the copy answers")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(DEADLINE_SECONDS)
        self._drop_slot()

    def _drop_slot(self) -> None:
        """Let the server remove WAL again, once it has noticed that nobody reads from the slot."""
        with connection.cursor() as cursor:

            def dropped() -> bool:
                cursor.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active",
                    [self._slot],
                )
                cursor.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", [self._slot])
                return cursor.fetchone() is None

            wait_until(dropped, what="the slot is dropped")

    def answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, (self.data.parent / "log").read_text()
        try:
            with self.session():
                return True
        except psycopg2.OperationalError:
            return False

    @contextmanager
    def session(self) -> Iterator[Any]:
        where = connection.get_connection_params() | {"port": self.port}
        with closing(psycopg2.connect(**where)) as opened:
            opened.autocommit = True
            yield opened.cursor()

    def promote(self) -> None:
        """The page's command, and wait until it is the primary."""
        places = {"/var/lib/postgresql/base": str(self.data)}
        self.run("pg_ctl", *[places.get(word, word) for word in line("pg_ctl promote")[1:]])
        wait_until(lambda: not self.ask("SELECT pg_is_in_recovery()"), what="the copy is the primary")

    def ask(self, query: str) -> Any:
        with self.session() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]
