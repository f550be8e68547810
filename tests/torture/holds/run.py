"""One run: clients that append in all ways, readers of all kinds, kills and crashes; then all readers must have all facts."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import psycopg2

from replsite.postgres.server import find_programs
from streams.holds.look import look
from streams.holds.weaknesses import weaknesses
from tests.deployment.places import program
from tests.support.ports import free_ports
from tests.support.session import PROJECT
from tests.support.waiting import wait_until
from tests.torture.holds.client import KINDS
from tests.torture.holds.client import Options as ClientOptions
from tests.torture.holds.readers import Announced, Outside, Reader, Readers, facts_sql, linear, vector
from tests.torture.holds.tables import PLANTS, STREAMS, Plant, install
from tests.torture.own_postgres import OwnPostgres

__all__ = ["Options", "Report", "run", "set_up", "with_plant"]
PGBOUNCER = program("pgbouncer")


@dataclass(frozen=True, slots=True)
class Options:
    """One run. ``plant`` names a fault of ``tables.PLANTS``."""

    seed: int
    seconds: float = 20.0
    processes: int = 3
    threads: int = 4
    crash_seconds: float = 0.0
    """Mean time between crashes of the server; 0: none."""
    kill_seconds: float = 1.0
    """Mean time between kills of a client or a session; 0: none."""
    asynchronous: bool = False
    """Whether only the commit of stored positions is flushed. Then a crash takes back facts whose commit was confirmed."""
    stress: bool = True
    plant: str = ""


@dataclass
class Report:
    """What happened, and what must not have happened."""

    facts: int = 0
    events: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    weaknesses: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told = [f"{self.facts} facts, {dict(self.events)}", *self.violations[:20]]
        return "\n".join(told + (["no violation"] if not self.violations else []))


def with_plant(plant: str, seed: int, seconds: float) -> Options:
    """A run with a planted fault. One that needs a crash gets crashes."""
    crash_seconds = 1.5 if plant == "an unconfirmed row" else 0.0
    return Options(
        seed, seconds, kill_seconds=0.0, plant=plant, crash_seconds=crash_seconds, asynchronous=crash_seconds > 0
    )


def set_up(server: OwnPostgres) -> None:
    """Settings of the server: prepared transactions, and WAL that stays in memory for long, so that a crash takes some back."""
    with server.cursor() as cursor:
        settings = {
            "max_prepared_transactions": "50", "wal_writer_delay": "'10s'", "wal_writer_flush_after": "'1GB'",
            "bgwriter_lru_maxpages": "0",
        }  # fmt: skip
        for name, value in settings.items():
            cursor.execute(f"ALTER SYSTEM SET {name} = {value}")
    crash(server)


def crash(server: OwnPostgres) -> None:
    """``kill -9`` of the whole server, and until it answers again."""
    server.kill_postmaster()
    wait_until(server.is_up)


def run(server: OwnPostgres, options: Options) -> Report:
    """Install, write and read for a time, end everything, compare."""
    report = Report()
    plant = PLANTS.get(
        options.plant, Plant(lambda cursor: None, tuple(KINDS), options.stress, options.crash_seconds > 0)
    )
    with server.cursor() as cursor:
        install(cursor)
        plant.plant(cursor)
        # Otherwise the commits of readers flush those of clients, too, and a crash takes nothing back.
        cursor.execute(f"ALTER DATABASE postgres SET synchronous_commit = {'off' if options.asynchronous else 'on'}")
        report.weaknesses = [one.problem for one in weaknesses(cursor) if one.loses]
    announced = Announced(confirms=options.plant != "an unconfirmed row")
    outside = [Outside(announced, by_writer=by_writer) for by_writer in (False, True)]
    readers = Readers(server.parameters)
    inside = [Reader("linear", linear), Reader("vector", vector)]
    for step in (*(reader.step for reader in inside), announced.step, *(one.step for one in outside), _read_inside):
        readers.start(step)
    inside_writers = Readers(server.parameters)
    for n in range(2 * plant.stress):
        inside_writers.start(partial(_write_inside, n, 0.0 if options.plant else 0.4))
    if plant.stress and options.plant:
        inside_writers.start(_draw_inside)
    clients = Clients(server, options, plant)
    try:
        clients.work(report, lambda: bool(options.plant and inside_writers.errors))
        clients.close(report)
        inside_writers.stop()
        _finish(server, report, outside)
    finally:
        clients.kill()
        inside_writers.stop()
        readers.stop()
    report.violations += [f"a reader failed: {error}" for error in (*readers.errors, *inside_writers.errors)]
    with server.cursor() as cursor:
        cursor.execute("ALTER DATABASE postgres RESET synchronous_commit")
        _compare(cursor, report, outside, clients.committed if not options.asynchronous else [])
    return report


def _read_inside(cursor: Any) -> bool:
    cursor.execute("CALL read_for(0.5)")
    return True


def _draw_inside(cursor: Any) -> bool:
    cursor.execute("CALL draw_for(0.1)")
    return True


def _write_inside(number: int, pause: float, cursor: Any) -> bool:
    try:
        cursor.execute("SET synchronous_commit = off")
        cursor.execute("CALL write_for(0.1, %s)", [f"inside-{number}-{time.time_ns()}"])
        time.sleep(pause)
    except psycopg2.errors.CheckViolation as error:
        raise psycopg2.DataError(f"refused inside: {error}") from error
    return True


class Clients:
    """The processes of clients, and what is done to them and to the server."""

    def __init__(self, server: OwnPostgres, options: Options, plant: Plant) -> None:
        self._server, self._options, self._plant = server, options, plant
        self._rng = random.Random(options.seed)
        self._running: list[subprocess.Popen[bytes]] = []
        self._said: list[IO[bytes]] = []
        self._count = 0
        self._pooler: Pooler | None = None
        self.committed: list[str] = []

    def work(self, report: Report, is_over: Callable[[], bool]) -> None:
        """Let them work, kill some, crash the server."""
        options, rng = self._options, self._rng
        if PGBOUNCER is not None and not options.plant:
            self._pooler = Pooler(PGBOUNCER, self._server)
        for _ in range(options.processes):
            self._start()
        wait_until(self._have_begun)
        until = time.time() + options.seconds
        crash_mean = options.crash_seconds
        crash_at = time.time() + crash_mean if crash_mean else float("inf")
        while not is_over() and (
            time.time() < until or (crash_mean and not report.events["crash"])
        ):  # a kill may take long
            time.sleep(0.1)
            if time.time() > crash_at:
                crash(self._server)
                report.events["crash"] += 1
                crash_at = time.time() + crash_mean * (0.5 + rng.random())
            if options.kill_seconds and rng.random() < 0.1 / options.kill_seconds:
                self._kill(report)

    def kill(self) -> None:
        """End them."""
        for process in self._running:
            process.kill()
            process.wait()
        if self._pooler is not None:
            self._pooler.close()

    def close(self, report: Report) -> None:
        """End them, and collect what they said."""
        ended = sum(process.poll() is not None for process in self._running)
        if ended:
            report.violations.append(f"{ended} processes of clients ended by themselves")
        self.kill()
        for file in self._said:
            file.seek(0)
            for line in file:
                what, said = json.loads(line)
                if what == "committed":
                    self.committed += said
                else:
                    report.violations.append(f"{what}: {said}".strip())
            file.close()

    def _have_begun(self) -> bool:
        with self._server.cursor() as cursor:
            cursor.execute("SELECT EXISTS (SELECT FROM t_plain)")
            return bool(cursor.fetchone()[0])

    def _start(self) -> None:
        # Each second process speaks psycopg 3, if it is here; each third one by way of the pooler.
        self._count += 1
        pooler = self._pooler if self._count % 3 == 2 else None
        options = ClientOptions(
            parameters=self._server.parameters() if pooler is None else pooler.parameters(), is_pooled=pooler is not None,
            seed=self._options.seed, name=f"p{self._count}", threads=self._options.threads, kinds=self._plant.kinds,
            driver="psycopg" if self._count % 2 and find_spec("psycopg") else "psycopg2", psql=self._psql(),
        )  # fmt: skip
        self._said.append(tempfile.TemporaryFile())  # noqa: SIM115 - closed with the others
        self._running.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.torture.holds.client", json.dumps(asdict(options))],
                cwd=PROJECT,
                stdout=self._said[-1],
            )
        )

    def _psql(self) -> str:
        program = find_programs() / "psql"
        return str(program) if self._count == 1 and program.is_file() and not self._options.plant else ""

    def _kill(self, report: Report) -> None:
        if self._rng.random() < 0.4:
            victim = self._running.pop(self._rng.randrange(len(self._running)))
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            report.events["kill client"] += 1
            self._start()
            return
        with self._server.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE "
                "backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) AS one")  # fmt: skip
        report.events["end session"] += 1


class Pooler:
    """A PgBouncer in transaction mode, with fewer sessions than clients."""

    def __init__(self, program: str, server: OwnPostgres) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="replsite-pooler-")
        self._server, (self._port,) = server, free_ports(1)
        Path(self._folder.name).chmod(0o755)
        there = {key: value for key, value in server.parameters().items() if key != "connect_timeout"}
        configuration = Path(self._folder.name, "pgbouncer.ini")
        configuration.write_text(
            "[databases]\n" + f"{server.database} = {' '.join(f'{key}={value}' for key, value in there.items())}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self._port}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = transaction\ndefault_pool_size = 3\nserver_round_robin = 1\nserver_login_retry = 1\n"
        )
        other = ["-u", "nobody"] if os.geteuid() == 0 else []  # it does not run as root
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen([program, *other, str(configuration)], stdin=quiet, stdout=quiet, stderr=quiet)

    def parameters(self) -> dict[str, Any]:
        return {**self._server.parameters(), "host": "127.0.0.1", "port": self._port}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def _finish(server: OwnPostgres, report: Report, outside: list[Outside]) -> None:
    """Until nothing is open and all readers are at the end."""

    def at_the_end() -> bool:
        try:
            with server.cursor() as cursor:
                cursor.execute("SELECT gid FROM pg_prepared_xacts")
                for row in cursor.fetchall():
                    cursor.execute("COMMIT PREPARED %s", row)
                cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'client'")
                if cursor.fetchone()[0]:
                    return False
                seen = look(cursor)
                cursor.execute("SELECT stream, min(position), count(*) FROM cursors GROUP BY stream")
                reached = {stream: (position, count) for stream, position, count in cursor.fetchall()}
        except psycopg2.OperationalError:
            return False
        return all(
            one.position == one.given
            and all(there.reached(stream) in (one.given, None) for there in outside)
            and reached.get(stream) == (one.given, 4)
            for stream, one in seen.items()
        )

    try:
        wait_until(at_the_end)
    except AssertionError as error:
        report.violations.append(f"readers do not come to the end: {error}")


def _compare(cursor: Any, report: Report, outside: list[Outside], committed: list[str]) -> None:
    found: set[str] = set()
    for name, stream in STREAMS.items():
        cursor.execute(f"SELECT id, mark FROM ({facts_sql(stream)}) AS f")
        facts = Counter(cursor.fetchall())
        marks = {mark for _, mark in facts}
        found |= marks
        report.facts += len(facts)
        for reader in ("linear", "vector"):
            cursor.execute("SELECT mark FROM handled WHERE reader = %s AND stream = %s", [reader, name])
            _differ(report, f"{reader} reader, stream {name}", marks, [mark for (mark,) in cursor.fetchall()])
        for reader, there in zip(("linear", "vector"), outside, strict=True):
            _differ(report, f"{reader} reader outside, stream {name}", facts, there.facts[name])
        numbers = [number for number, _ in outside[0].facts[name]]
        if numbers != sorted(numbers):
            report.violations.append(f"linear reader outside, stream {name}: not in order")
    cursor.execute(
        "SELECT after, upto, facts, (SELECT count(*) FROM t_plain WHERE stream_id > after AND stream_id <= upto) FROM intervals"
    )
    for after, upto, seen, there in cursor.fetchall():
        report.events["looks inside"] += 1
        if seen != there:
            report.violations.append(f"reader inside: {seen} facts in {after + 1} to {upto}, and {there} are there")
    if lost := [mark for mark in committed if mark not in found]:
        report.violations.append(f"{len(lost)} facts were committed and are lost, such as {lost[0]}")


def _differ(report: Report, who: str, facts: Any, read: list[Any]) -> None:
    if missed := set(facts) - set(read):
        report.violations.append(f"{who}: missed {len(missed)} facts, such as {min(missed)}")
    if invented := set(read) - set(facts):
        report.violations.append(f"{who}: read {len(invented)} facts that are not there, such as {min(invented)}")
    if len(read) > len(set(read)):
        report.violations.append(f"{who}: read {len(read) - len(set(read))} facts twice")
