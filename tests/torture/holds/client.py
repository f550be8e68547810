"""A process of clients that append: ``python -m tests.torture.holds.client OPTIONS`` (JSON). Killed at any time.

Knows nothing of holds. Speaks by psycopg2, psycopg 3 or psql, to the server or by way of a pooler in transaction mode. Writes a
line for each transaction whose COMMIT was confirmed, and one for each refusal.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from typing import Any

from tests.torture.holds.tables import INSERTED, WRITERS

__all__ = ["KINDS", "Options", "main"]

#: Errors that are refusals of the guard, or of changes. No client here does what they refuse.
_REFUSED = ("23514", "23001")
#: A serialization failure, and a deadlock.
_GIVES_WAY = ("40001", "40P01")


@dataclass(frozen=True, slots=True)
class Options:
    """What the process does."""

    parameters: dict[str, Any]
    seed: int
    name: str
    threads: int
    kinds: tuple[str, ...]
    driver: str
    psql: str
    is_pooled: bool


class Client:
    """One connection, and the marks of the transaction that is open on it."""

    def __init__(self, driver: Any, connection: Any, rng: random.Random, tag: str) -> None:
        self.connection, self.errors, self.rng = connection, driver.errors, rng
        self.cursor = connection.cursor()
        self._inserts = driver.Cursor(connection) if driver.__name__ == "psycopg" else self.cursor
        self.marks: list[str] = []
        self._tag, self._count = tag, 0

    def mark(self) -> str:
        """A text for one fact, never used before."""
        self._count += 1
        self.marks.append(f"{self._tag}-{self._count}")
        return self.marks[-1]

    def sql(self, statement: str, values: Any = None) -> None:
        self.cursor.execute(statement, values)

    def insert(self, table: str = "", facts: int = 0) -> None:
        """One INSERT of some facts."""
        marks = [self.mark() for _ in range(facts or self.rng.choice((1, 1, 1, 2, 20)))]
        places = ", ".join(["(%s)"] * len(marks))
        self._inserts.execute(f"INSERT INTO {table or self.rng.choice(INSERTED)} (mark) VALUES {places}", marks)

    def copy(self, statement: str, lines: str) -> None:
        """COPY … FROM STDIN."""
        if hasattr(self.cursor, "copy_expert"):
            self.cursor.copy_expert(statement, io.StringIO(lines))
        else:
            with self.cursor.copy(statement) as copying:
                copying.write(lines)

    def pause(self, longest: float = 0.02) -> None:
        time.sleep(self.rng.random() ** 3 * longest)

    def forget(self, since: int) -> None:
        """The marks after the first ``since`` are never committed."""
        del self.marks[since:]


# --- kinds of transactions: each begins and ends by itself --------------------------------------------------------


def one(c: Client) -> None:
    """One statement, committed by itself."""
    c.insert("t_plain" if c.rng.random() < 0.6 else "")


def several(c: Client) -> None:
    """Several streams, and a pause."""
    c.sql("BEGIN")
    for _ in range(c.rng.randint(1, 4)):
        c.insert()
        c.pause()
    _end(c)


def slow(c: Client) -> None:
    """Holds its streams for long."""
    c.sql("BEGIN")
    c.insert("t_plain", 1)
    c.insert("", 1)
    c.pause(0.4)
    _end(c)


def copy(c: Client) -> None:
    """COPY."""
    lines = "".join(f"{c.mark()}\n" for _ in range(c.rng.randint(1, 100)))
    c.copy(f"COPY {c.rng.choice(INSERTED)} (mark) FROM STDIN", lines)


def select(c: Client) -> None:
    """INSERT … SELECT, in an order of its own, with a CTE."""
    marks = [c.mark() for _ in range(c.rng.randint(1, 30))]
    c.sql("WITH m AS MATERIALIZED (SELECT m FROM unnest(%s::text[]) m) "
          f"INSERT INTO {c.rng.choice(INSERTED)} (mark) SELECT m FROM m ORDER BY m DESC", [marks])  # fmt: skip


def fed(c: Client) -> None:
    """Facts that another table's triggers write, some of them at COMMIT."""
    c.sql("BEGIN")
    for _ in range(c.rng.randint(1, 3)):
        c.sql("INSERT INTO t_source VALUES (%s)", [c.mark()])
        c.pause()
    _end(c)


def savepoints(c: Client) -> None:
    """Rolls back to savepoints, also to those in which the stream was held first."""
    c.sql("BEGIN")
    for n in range(c.rng.randint(1, 4)):
        before = len(c.marks)
        c.sql(f"SAVEPOINT s{n}")
        c.insert("t_plain" if c.rng.random() < 0.5 else "")
        c.pause(0.01)
        if c.rng.random() < 0.5:
            c.sql(f"ROLLBACK TO s{n}")
            c.forget(before)
        elif c.rng.random() < 0.5:
            c.sql(f"RELEASE s{n}")
    _end(c)


def block(c: Client) -> None:
    """A block that catches errors, and commits inside of a loop."""
    marks = [c.mark(), c.mark()]
    c.sql(f"DO $$ BEGIN BEGIN INSERT INTO t_plain (mark) VALUES ('dead'); RAISE 'meant to fail'; EXCEPTION WHEN raise_exception "
          f"THEN NULL; END; INSERT INTO t_plain (mark) VALUES ('{marks[0]}'); COMMIT; "
          f"INSERT INTO t_w40 (mark) VALUES ('{marks[1]}'); "
          "END $$")  # fmt: skip


def ids_first(c: Client) -> None:
    """IDs first, rows of two tables later."""
    c.sql("BEGIN")
    c.sql("SELECT streams_hold('two')")
    c.sql("SELECT array_agg(nextval('s_two')) FROM generate_series(1, %s)", [c.rng.randint(1, 4)])
    (ids,) = c.cursor.fetchone()
    c.pause(0.05)
    for number in c.rng.sample(ids, len(ids)):
        for table in ("t_two_b", "t_two_a"):
            c.sql(f"INSERT INTO {table} (stream_id, mark) VALUES (%s, %s)", [number, c.mark()])
    _end(c)


def isolated(c: Client) -> None:
    """A transaction that keeps one snapshot."""
    c.sql(f"BEGIN ISOLATION LEVEL {c.rng.choice(('REPEATABLE READ', 'SERIALIZABLE'))}")
    c.sql("SELECT count(*) FROM streams_streamposition")
    c.pause(0.1)
    c.insert("t_plain")
    c.insert()
    _end(c)


def prepared(c: Client) -> None:
    """A transaction that is prepared here and ended by whoever comes next."""
    c.sql("BEGIN")
    c.insert("t_plain")
    c.insert()
    c.sql("PREPARE TRANSACTION %s", [c.marks[0]])
    c.forget(0)  # nobody is told that it is committed
    c.pause(0.1)
    c.sql("SELECT gid FROM pg_prepared_xacts ORDER BY random() LIMIT 1")
    if found := c.cursor.fetchone():
        with suppress(c.errors.UndefinedObject, c.errors.ObjectNotInPrerequisiteState):  # another ends it
            c.sql(f"{c.rng.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} PREPARED %s", found)


def writers(c: Client) -> None:
    """Names its writer, or two of them."""
    c.sql("BEGIN")
    for _ in range(c.rng.randint(1, 2)):
        c.sql("SELECT set_config('streams.writer', %s, true)", [c.rng.choice((*WRITERS, ""))])
        c.insert("t_plain" if c.rng.random() < 0.5 else "")
        c.pause(0.1)
    _end(c)


def failing_cursor(c: Client) -> None:
    """A cursor that appends, and then fails in a savepoint."""
    c.sql("BEGIN")
    good, bad = c.mark(), c.mark()
    c.sql("DECLARE c CURSOR FOR SELECT append_or_fail(m, m = %s) FROM unnest(%s::text[]) m", [bad, [good, bad]])
    c.sql("FETCH 1 FROM c")
    c.sql("SAVEPOINT s")
    with suppress(c.errors.RaiseException):
        c.sql("FETCH 1 FROM c")
    c.sql("ROLLBACK TO s")
    c.forget(1)
    c.pause(0.1)
    c.insert("t_plain", 1)
    c.pause(0.1)
    _end(c)


def poisoned(c: Client) -> None:
    """A session in which somebody set what the hold remembers."""
    c.sql("SELECT number FROM streams_held WHERE stream = 'plain'")
    slot = f"streams.held{c.cursor.fetchone()[0]}_0"
    c.sql(f"SET {slot} = '{c.rng.choice((0, 1, 5, 10**12))}'")
    c.sql("BEGIN")
    c.insert("t_plain")
    c.pause(0.2)
    _end(c)
    c.sql(f"SET {slot} = ''")


KINDS: dict[str, Callable[[Client], None]] = {
    kind.__name__: kind
    for kind in (
        one, several, slow, copy, select, fed, savepoints, block, ids_first, isolated, prepared, writers, failing_cursor,
        poisoned,
    )
}  # fmt: skip


def _end(c: Client) -> None:
    if c.rng.random() < 0.2:
        c.sql("ROLLBACK")
        c.forget(0)
    else:
        c.sql("COMMIT")


# --- the process --------------------------------------------------------------------------------------------------


def main() -> None:
    """Run all threads until the process is killed."""
    options = Options(**json.loads(sys.argv[1]))
    jobs = [threading.Thread(target=_work, args=(options, n), daemon=True) for n in range(options.threads)]
    if options.psql:
        jobs.append(threading.Thread(target=_psql, args=(options,), daemon=True))
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()


def _say(what: str, said: Any) -> None:
    # One write for each line: the process is killed at any time, and a part of a line would be read as another mark.
    os.write(1, (json.dumps([what, said]) + "\n").encode())


def _work(options: Options, thread: int) -> None:
    rng = random.Random(f"{options.seed} {options.name} {thread}")
    driver = import_module(options.driver)
    parameters = {**options.parameters, "application_name": "client"}
    if options.driver == "psycopg":
        # Values are put into the text, as by psycopg2, since DECLARE and PREPARE TRANSACTION take none; but for INSERTs,
        # which are prepared after some executions.
        parameters |= {"cursor_factory": driver.ClientCursor, "prepare_threshold": None if options.is_pooled else 3}
    for life in count():
        try:
            with closing(driver.connect(**parameters)) as connection:
                connection.autocommit = True
                client = Client(driver, connection, rng, f"{options.name}-{thread}-{life}")
                while True:
                    _transact(driver, client, KINDS[rng.choice(options.kinds)])
        except (driver.OperationalError, driver.InterfaceError, SystemError):  # the last one by a COPY that is cut off
            time.sleep(0.05)  # the server is down, or this session was ended


def _transact(driver: Any, client: Client, kind: Callable[[Client], None]) -> None:
    client.marks = []
    try:
        kind(client)
    except driver.Error as error:
        code = error.sqlstate if driver.__name__ == "psycopg" else error.pgcode
        if code is None:  # not the server's: the connection was lost, at COPY also in the midst of it
            raise driver.OperationalError from error
        if code not in (*_REFUSED, *_GIVES_WAY) and isinstance(error, driver.OperationalError | driver.InterfaceError):
            raise
        if code in _REFUSED:
            _say("refused", f"{kind.__name__}: {error}")
        elif code not in _GIVES_WAY:
            _say("error", f"{kind.__name__}: {code} {error}")
        client.sql("ROLLBACK")
        return
    if client.marks:
        _say("committed", client.marks)


def _psql(options: Options) -> None:
    """A client of another language."""
    where = options.parameters
    environment = {
        **os.environ, "PGHOST": where["host"], "PGPORT": str(where["port"]), "PGUSER": where["user"],
        "PGPASSWORD": where["password"], "PGDATABASE": where["dbname"],
    }  # fmt: skip
    for n in count():
        marks = [f"{options.name}-psql-{n}-{k}" for k in range(2)]
        script = f"BEGIN; INSERT INTO t_plain (mark) VALUES ('{marks[0]}'); SELECT pg_sleep(0.01); " \
                 f"INSERT INTO t_left (mark) VALUES ('{marks[1]}'); COMMIT;"  # fmt: skip
        done = subprocess.run(
            [options.psql, "-qAtX", "-v", "ON_ERROR_STOP=1"],
            input=script,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            _say("committed", marks)
        time.sleep(0.1)


if __name__ == "__main__":
    main()
