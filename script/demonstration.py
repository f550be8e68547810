"""Runs the demo: the whole site on real room histories, with a check of every fact at the end.

Starts the site with an empty data directory and connects a follower over TCP. Imports the shipped rooms through Spark.
Then two writers append live, while a Spark streaming query counts events per room. At the end the demo checks that the
follower saw exactly the facts that are in the tables, in order, and that the counts agree. Last, ``manage.py doctor``
examines a database like that of a Synapse server, from which a row was taken, and finds it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from replsite.postgres.server import EmbeddedServer

PROJECT = Path(__file__).resolve().parent.parent
ROOMS = PROJECT / "tests" / "data" / "rooms"
STREAMS = ("events", "backfill", "caches")
LIVE_EVENTS, LIVE_INVALIDATIONS = 1_500, 1_500
#: The writers with which the demo stays up, as (stream, name, facts a second). The live page misses them when they are away.
STAYING = (("events", "writer-1", 2), ("caches", "writer-2", 5))
#: The rooms in the database that ``doctor`` examines, with the answers of their real server, and what is damaged there.
EXAMINED_ROOMS = ("v9_restricted", "v10_visibility_walk")
DAMAGE = (
    "DELETE FROM current_state_events WHERE type = 'm.room.join_rules' AND room_id = (SELECT min(room_id) FROM rooms)"
)
STEP_SECONDS = 240
STOP_SECONDS = 20

_begun = time.monotonic()


def say(text: str) -> None:
    """Prints a line of progress with the elapsed time to standard error."""
    sys.stderr.write(f"[{time.monotonic() - _begun:5.1f} s] {text}\n")
    sys.stderr.flush()


class DemoError(Exception):
    """A failed step of the demo. The message names the step and has the end of its log."""


@dataclass
class Demo:
    """The running parts of one demo."""

    folder: Path
    http: str
    replication: str
    stack: ExitStack
    password: str = ""
    addresses: dict[str, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def log_folder(self) -> Path:
        """Returns the folder to which the parts write their errors."""
        return self.folder / "log"

    @property
    def environment(self) -> dict[str, str]:
        """Returns the environment variables of every part."""
        expected = {stream: {name: rate * 3600 // 2} for stream, name, rate in STAYING}
        return {
            **os.environ,
            "REPLSITE_DATA_DIR": str(self.folder),
            "REPLSITE_LOG_LEVEL": "WARNING",
            "REPLSITE_EXPECTED_WRITERS": json.dumps(expected),
        }

    # --- processes ------------------------------------------------------------------------------------------------

    def manage(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        """Starts ``manage.py``, with its standard error in a file of the log folder.

        The process ends with the demo at the latest.
        """
        log = self.stack.enter_context((self.log_folder / f"{arguments[0]}.log").open("a"))
        command = [sys.executable, "manage.py", *arguments]
        more.setdefault("stdout", subprocess.PIPE)
        with _uninterrupted():  # a signal between start and callback would leave a process that is never ended
            process = subprocess.Popen(
                command, cwd=PROJECT, env={**self.environment, **more.pop("env", {})}, stderr=log, text=True, **more
            )
            self.stack.callback(_end, process)
        return process

    def finished(self, process: subprocess.Popen[str], what: str, allowed: Sequence[int] = (0,)) -> str:
        """Waits for a part to end, and returns what it printed.

        Raises DemoError if it does not end within ``STEP_SECONDS``, or if its exit status is not one of ``allowed``.
        """
        try:
            output, _ = process.communicate(timeout=STEP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise DemoError(f"{what} did not end within {STEP_SECONDS} s.{self._last_words(what)}") from None
        if process.returncode not in allowed:
            raise DemoError(f"{what} failed with status {process.returncode}.{self._last_words(what)}")
        return output or ""

    def _last_words(self, what: str) -> str:
        path = self.log_folder / f"{what.split(maxsplit=1)[0]}.log"
        return "\n" + "".join(path.read_text().splitlines(keepends=True)[-15:]) if path.exists() else ""

    # --- steps ----------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Creates the tables and the admin's user."""
        say("database: starting PostgreSQL and making the tables")
        self.finished(self.manage("migrate", "--verbosity", "0"), "migrate")
        self.password = secrets.token_urlsafe(12)
        user = {"DJANGO_SUPERUSER_PASSWORD": self.password}
        arguments = ("createsuperuser", "--noinput", "--username", "admin", "--email", "admin@localhost")
        self.finished(self.manage(*arguments, env=user), "createsuperuser")

    def serve(self) -> None:
        """Starts the site, and returns when it accepts connections. Raises DemoError if it does not start."""
        process = self.manage("serve", "--http", self.http, "--replication", self.replication)
        line = process.stdout.readline() if process.stdout else ""
        if not line.startswith("ready "):
            process.wait(timeout=10)
            raise DemoError(f"serve did not start.{self._last_words('serve')}")
        self.addresses = dict(part.split("=", 1) for part in line.split()[1:])
        say(f"site: http://{self.addresses['http']}/admin/ and replication on {self.addresses['replication']}")

    def follow(self, output: IO[str]) -> None:
        """Connects a follower that writes every fact that it sees to a file."""
        begins = [argument for stream in STREAMS for argument in ("--from", f"{stream}=1")]
        self.manage(
            "follow", f"tcp://{self.addresses['replication']}", "--name", "demo-follower", "--view", "linear",
            "--streams", ",".join(STREAMS), "--json", *begins, stdout=output,
        )  # fmt: skip

    def import_rooms(self) -> dict[str, Any]:
        """Imports the shipped rooms through Spark, and returns the summary of the import."""
        paths = sorted(str(path) for path in ROOMS.glob("*/events.jsonl.gz"))
        say(f"import: {len(paths)} real room histories through Spark")
        output = self.finished(self.manage("import_events", *paths, "--master", "local[2]", "--json"), "import_events")
        summary: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        say(f"import: {summary['imported']:,} events of {summary['rooms']} rooms in {summary['seconds']:.1f} s")
        return summary

    def examine(self) -> dict[str, Any]:
        """Lets ``doctor`` examine a damaged Synapse database that is made for it. Returns its report.

        Raises DemoError unless it finds the damage, and nothing else.
        """
        from tests.support.synapse_database import postgresql_database  # noqa: PLC0415
        from tests.support.synapse_server import run as run_sql  # noqa: PLC0415

        say("doctor: a made Synapse database, in which a row of the current state is missing")
        with postgresql_database(server_url(), EXAMINED_ROOMS, answers=True) as url:
            run_sql(url, DAMAGE)
            process = self.manage("doctor", url, "--json", "--html", str(self.folder / "doctor.html"))
            report: dict[str, Any] = json.loads(self.finished(process, "doctor", allowed=(1,)))
        found = [finding["reason"] for finding in report["findings"]]
        if found != ["current-state-differs"]:
            raise DemoError(f"doctor found {found} in a database in which one row of the current state was missing.")
        say(f"doctor: {report['checked']['events']:,} events computed again; found: {report['findings'][0]['text']}")
        return report

    def live(self) -> None:
        """Lets two writers append at the same time, and waits for both."""
        say(f"live: two writers append {LIVE_EVENTS:,} events and {LIVE_INVALIDATIONS:,} cache invalidations")
        writers = [
            self.manage("append", "events", "--count", str(LIVE_EVENTS), "--threads", "2", "--instance", "writer-1"),
            self.manage(
                "append", "caches", "--count", str(LIVE_INVALIDATIONS), "--threads", "2", "--instance", "writer-2"
            ),
        ]
        for process in writers:
            self.finished(process, "append")

    def go_on(self) -> list[subprocess.Popen[str]]:
        """Starts two writers that append a few facts each second, also after a restart of the database."""
        return [
            self.manage("append", stream, "--count", "1000000000", "--rate", str(rate), "--instance", name, "--patient")
            for stream, name, rate in STAYING
        ]


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a process by SIGTERM, and after 10 s by SIGKILL."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


# --- checks --------------------------------------------------------------------------------------------------------


def table_facts() -> dict[str, list[tuple[int, str, str]]]:
    """Returns the rows in the tables: ``{stream: [(token, writer, row)]}`` in the order of the streams, ``row`` as JSON."""
    from django.db import connection  # noqa: PLC0415 - after Django was set up

    from streams import registry  # noqa: PLC0415
    from streams.reading import rows as readers  # noqa: PLC0415

    found = {}
    with connection.cursor() as cursor:
        stored = readers.stored_positions(cursor)
        for name in STREAMS:
            end = readers.linear_position(stored.get(name, {}).values())
            rows, _ = readers.rows_between(cursor, registry.get(name).declaration, None, 1, end, 1_000_000)
            found[name] = [(fact.token, fact.instance, _canonical(fact.row)) for fact in rows]
    return found


def _canonical(row: Any) -> str:
    return json.dumps(row, sort_keys=True)


def seen_facts(path: Path) -> dict[str, list[tuple[int, str, str]]]:
    """Returns the rows that the follower wrote, in its order and in the form of ``table_facts``."""
    found: dict[str, list[tuple[int, str, str]]] = {name: [] for name in STREAMS}
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):  # the last line may be half written
                fact = json.loads(line)
                found[fact["stream"]].append((fact["token"], fact["instance"], _canonical(fact["row"])))
    return found


def wait_for_follower(
    path: Path, expected: dict[str, list[tuple[int, str, str]]]
) -> dict[str, list[tuple[int, str, str]]]:
    """Returns the follower's rows, as soon as there are as many as in the tables, or after a minute."""
    deadline = time.monotonic() + 60
    wanted = sum(map(len, expected.values()))
    while True:
        with path.open("rb") as lines:
            count = sum(1 for _ in lines)
        if count >= wanted or time.monotonic() > deadline:
            return seen_facts(path)
        time.sleep(0.1)


def check_follower(
    expected: dict[str, list[tuple[int, str, str]]], seen: dict[str, list[tuple[int, str, str]]]
) -> None:
    """Raises DemoError unless the follower saw exactly the rows in the tables, in order."""
    for stream in STREAMS:
        want, got = expected[stream], seen[stream]
        if want != got:
            missing, extra = len(set(want) - set(got)), len(set(got) - set(want))
            raise DemoError(f"Stream {stream}: the follower saw {len(got)} rows, the tables hold {len(want)} ({missing} missing, "
                            f"{extra} extra, order {'differs' if not missing and not extra else 'not compared'}).")  # fmt: skip
        say(f"check: {stream}: the follower saw exactly the {len(want):,} rows in the tables, in order")


def check_counts() -> int:
    """Returns the number of rooms. Raises DemoError if Spark's events per room differ from the tables."""
    from django.db import connection  # noqa: PLC0415

    with connection.cursor() as cursor:
        cursor.execute("SELECT room_id, count(*) FROM events_event WHERE stream_ordering > 0 GROUP BY room_id")
        expected = dict(cursor.fetchall())
        cursor.execute("SELECT room_id, events FROM pipeline_roomstatistics WHERE events > 0")
        counted = dict(cursor.fetchall())
    if expected != counted:
        wrong = {room for room in {*expected, *counted} if expected.get(room) != counted.get(room)}
        raise DemoError(f"Spark's events per room differ from the tables in {len(wrong)} rooms.")
    say(f"check: events per room agree for {len(expected)} rooms")
    return len(expected)


def server_url() -> str:
    """Returns the URL of the demo's database."""
    from django.db import connection  # noqa: PLC0415

    connection.ensure_connection()
    where = connection.settings_dict
    return f"postgresql://{where['USER']}:{where['PASSWORD']}@{where['HOST']}:{where['PORT']}/{where['NAME']}"


def positions() -> dict[str, int]:
    """Returns the linear position of each stream."""
    from django.db import connection  # noqa: PLC0415

    from streams.reading import rows as readers  # noqa: PLC0415

    with connection.cursor() as cursor:
        stored = readers.stored_positions(cursor)
    return {name: readers.linear_position(stored.get(name, {}).values()) for name in STREAMS}


# --- the whole -----------------------------------------------------------------------------------------------------


def run(demo: Demo) -> None:
    """Runs all steps and checks. The site and the follower go on until the stack is closed."""
    demo.prepare()
    demo.serve()
    path = demo.log_folder / "facts.jsonl"
    output = demo.stack.enter_context(path.open("w"))
    demo.follow(output)
    imported = demo.import_rooms()
    say("counts: a Spark streaming query counts events per room")
    counting = demo.manage("pipeline", "run", "--until-idle", "3")
    demo.live()
    expected = table_facts()
    check_follower(expected, wait_for_follower(path, expected))
    say("counts: waiting until the query has counted everything")
    demo.finished(counting, "pipeline run")
    rooms = check_counts()
    report = demo.examine()
    facts = {name: len({token for token, _, _ in rows}) for name, rows in expected.items()}
    rows_of = {name: len(rows) for name, rows in expected.items()}
    demo.summary = {
        "events": imported["imported"] + LIVE_EVENTS, "rooms": rooms, "facts": facts, "rows": rows_of,
        "positions": positions(), "examined": report["checked"], "seconds": round(time.monotonic() - _begun, 1),
    }  # fmt: skip


def _by_stream(numbers: dict[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in numbers.items())


def print_summary(demo: Demo) -> None:
    """Prints the figures of the run to standard output."""
    out = demo.summary
    lines = [
        "",
        f"  events     {out['events']:,} in {out['rooms']} rooms: the imported ones, and those of the live writers",
        f"  facts      {_by_stream(out['facts'])}   (one ID each; an event is a fact of events or of backfill)",
        f"  rows       {_by_stream(out['rows'])}   (a fact of events also has a row for each change of a room's state)",
        f"  positions  {_by_stream(out['positions'])}   (the ID of the last fact; the first one is 2)",
        f"  doctor     {out['examined']['events']:,} events of a Synapse database computed again, the damage was found: "
        f"{demo.folder / 'doctor.html'}",
        f"  seconds    {out['seconds']}",
        f"  live page  http://{demo.addresses['http']}/admin/live/",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def stay(demo: Demo) -> None:
    """Appends a few facts each second, and carries out the jobs that are queued on the pages, until the demo is ended."""
    sys.stdout.write(f"  log in as  admin / {demo.password}   (shown once)\n\n  Ctrl-C ends the demo.\n")
    sys.stdout.flush()
    demo.go_on()
    demo.manage("pipeline", "run")  # without it the counts would fall behind
    demo.manage("runjobs", stdout=subprocess.DEVNULL)
    with suppress(KeyboardInterrupt):
        signal.pause()


def _folder(once: bool, stack: ExitStack) -> Path:
    """Returns an empty data directory: with ``once`` a temporary one, else the demo's own, which is emptied.

    Raises DemoError if another demo runs in the demo's own.
    """
    if once:
        folder = Path(tempfile.mkdtemp(prefix="replsite-demo-"))
        stack.callback(_remove, folder)
        stack.callback(_end_rest, folder)  # before the one above
        return folder
    home = Path(os.environ.get("REPLSITE_DATA_DIR", PROJECT / ".data")).absolute()
    home.mkdir(parents=True, exist_ok=True)
    lock = stack.enter_context((home / "demo.lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DemoError(
            f"another demo runs in {home / 'demo'}; end it, or set REPLSITE_DATA_DIR to another folder."
        ) from None
    folder = home / "demo"
    EmbeddedServer(folder).stop()  # of a demo that was killed
    if not _delete(folder):
        raise DemoError(f"{folder} cannot be removed; delete it, or set REPLSITE_DATA_DIR to another folder.")
    folder.mkdir()
    stack.callback(EmbeddedServer(folder).stop_for_good)
    stack.callback(_end_rest, folder)  # before the one above
    return folder


def _end_rest(folder: Path) -> None:
    """Waits for the processes that parts of the demo have left, and kills them after ``STOP_SECONDS``.

    Spark's JVM ends some time after the part that started it. Until then it writes into the data directory.
    """
    _, left = psutil.wait_procs(list(_rest(folder)), timeout=STOP_SECONDS)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=STOP_SECONDS)


def _rest(folder: Path) -> Iterator[psutil.Process]:
    """Yields the processes of this data directory, except the database's."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or belongs to another user
            if process.name() != "postgres" and process.environ().get("REPLSITE_DATA_DIR") == str(folder):
                yield process


def _remove(folder: Path) -> None:
    """Removes the temporary data directory, after its database has stopped writing to it."""
    EmbeddedServer(folder).stop_for_good()
    _delete(folder)


def _delete(folder: Path) -> bool:
    """Deletes a folder in which a server that is stopping may still create files.

    Returns false if the folder is there after ``STOP_SECONDS``.
    """
    deadline = time.monotonic() + STOP_SECONDS
    while folder.exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)
    return not folder.exists()


def _interrupt(*_: Any) -> None:
    """Handles SIGTERM like Ctrl-C. Further signals are ignored, so that the processes of the demo are ended first."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defers an interrupt to the end of the block."""
    met: list[int] = []
    before = {one: signal.signal(one, lambda number, _: met.append(number)) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    if met:
        _interrupt()


def main() -> int:
    """Runs the demo. Returns 0 if everything agreed, 1 if not, and 130 if it was interrupted before that."""
    parser = argparse.ArgumentParser(
        prog="script/demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--once", action="store_true", help="check, print a summary and exit instead of staying up")
    parser.add_argument(
        "--http", default=None, metavar="HOST:PORT", help="where the site listens (127.0.0.1:8000; --once: a free port)"
    )
    parser.add_argument(
        "--replication", default=None, metavar="HOST:PORT", help="(127.0.0.1:9092; --once: a free port)"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        with ExitStack() as stack:
            _demonstrate(options, _folder(options.once, stack), stack)
    except DemoError as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted: not everything was checked")
        return 130
    say("ended")
    return 0


def _demonstrate(options: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
    import django  # noqa: PLC0415 - after the environment is set

    (folder / "log").mkdir(mode=0o700)
    os.environ.update(
        REPLSITE_DATA_DIR=str(folder), REPLSITE_LOG_LEVEL="WARNING", DJANGO_SETTINGS_MODULE="replsite.settings"
    )
    django.setup()
    http, replication = ("127.0.0.1:0", "127.0.0.1:0") if options.once else ("127.0.0.1:8000", "127.0.0.1:9092")
    demo = Demo(folder, options.http or http, options.replication or replication, stack)
    run(demo)
    print_summary(demo)
    if not options.once:
        stay(demo)


if __name__ == "__main__":
    sys.exit(main())
