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


#: How the page's commands begin that make a copy: a base backup to recover from, and a standby.
BACKUP, STANDBY = "pg_basebackup -D", "pg_basebackup -C"


def remove_older_wal(cursor: Any) -> None:
    """Have a server remove the WAL that nothing keeps, as each checkpoint does."""
    for _ in range(2):
        cursor.execute("SELECT pg_switch_wal()")
        cursor.execute("CHECKPOINT")


class Copy:
    """A copy of the session's server, or of another copy, made by a command of the page and started as a server of its own.

    The primary removes older WAL at once, as it may at any time: what a standby still needs, the page's command keeps.
    """

    def __init__(self, folder: Path, begin: str, of: Copy | None = None) -> None:
        self.where = {**connection.settings_dict}
        self.primary = connection.cursor if of is None else of.session
        self.data = folder / "base"
        self.port = free_ports(1)[0]
        server = f"host={self.where['HOST']} port={self.where['PORT'] if of is None else of.port}"
        #: What stands in the place of the page's words. The server may be that of other test processes, too.
        self.slot, self.role = f"standby1_{self.port}", f"replsite_standby_{self.port}"
        self._words = {
            "/var/lib/postgresql/base": str(self.data),
            "/var/lib/postgresql/standby1": str(self.data),
            "standby1": self.slot,
            "replsite_standby": self.role,
            "host=PRIMARY": server,
            "user=postgres": f"{server} user={self.where['USER']}",
        }
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        programs = Path(postgres_program("postgres")).parent
        self.account: Account = choose_account(folder, programs)
        self.account.chown(folder)
        self.process: subprocess.Popen[bytes] | None = None
        try:
            if begin == STANDBY:
                with self.primary() as cursor:  # an operator types the password
                    cursor.execute(f"{self.statement('CREATE ROLE')} PASSWORD %s", [self.where["PASSWORD"]])
            self.run(*self.words(begin), "--no-sync")
        except BaseException:
            self._drop()
            raise
        with self.primary() as cursor:
            remove_older_wal(cursor)

    def words(self, start: str) -> list[str]:
        """The words of the page's command that begins so, for this copy."""
        return [self._here(word.strip('"')) for word in line(start)]

    def statement(self, start: str) -> str:
        """The page's statement that begins so, for this copy."""
        found = re.findall(rf'^psql -c "({re.escape(start)}[^"]*)"', PAGE, re.M)
        assert len(found) == 1, (start, found)
        return self._here(found[0])

    def _here(self, text: str) -> str:
        names = "|".join(map(re.escape, self._words))
        return re.sub(rf"(?<![\w/-])({names})(?![\w/-])", lambda found: self._words[found[0]], text)

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

    def halt(self) -> None:
        """End its processes; it may be started again."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(DEADLINE_SECONDS)

    def stop(self) -> None:
        self.halt()
        self._drop()

    def _drop(self) -> None:
        """Let the server remove WAL again, once it has noticed that nobody reads from the slot."""
        with self.primary() as cursor:

            def dropped() -> bool:
                cursor.execute(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active",
                    [self.slot],
                )
                cursor.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", [self.slot])
                return cursor.fetchone() is None

            wait_until(dropped, what="the slot is dropped")
            cursor.execute(f"DROP ROLE IF EXISTS {self.role}")

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
        self.run(*self.words("pg_ctl promote"))
        wait_until(lambda: not self.ask("SELECT pg_is_in_recovery()"), what="the copy is the primary")

    def ask(self, query: str) -> Any:
        with self.session() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]
