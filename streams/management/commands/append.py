"""``manage.py append``: a load generator that appends sample facts to a stream.

Each thread has its own load generator and database connection. All threads share one writer.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import Error as DjangoError
from django.db import connections

from streams import load_generator, registry
from streams.core.names import check_name
from streams.db import driver
from streams.errors import StreamError
from streams.jobs.command import as_command_errors
from streams.runtime.command_line import SiteCommand
from streams.writing import reservation
from streams.writing.name import written_by

#: Each thread has a database connection of its own.
MOST_THREADS = 500
#: The pause before a retry, with ``--patient``.
PATIENCE_SECONDS = 0.5


class Command(SiteCommand):
    """The command ``append``: the load generator.

    The exit status is 1 if an append failed or if facts are still pending at the end. It is 2 for unusable arguments,
    and 130 after an interrupt.
    """

    help = "Append COUNT made-up facts to a stream: --batch facts per transaction, each under its own ID."

    examples = (
        ("append caches --count 10", "ten facts, one after the other"),
        ("append caches --count 10000 --batch 10 --threads 8 --instance load-1", "a load"),
        ("append caches --count 1000000 --rate 5 --patient", "a trickle that outlives a restart of the database"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("stream", help=f"one of: {', '.join(registry.names())}")
        parser.add_argument("--count", type=int, required=True, help="facts in total")
        parser.add_argument("--batch", type=int, default=1, help="facts per transaction (1)")
        parser.add_argument("--threads", type=int, default=1, help="threads that append side by side (1)")
        parser.add_argument("--instance", default="append", help="writer name (append)")
        parser.add_argument(
            "--patient",
            action="store_true",
            help="while the database is away: wait, and go on",
        )
        parser.add_argument("--rate", type=float, default=0.0, help="at most so many facts a second in all (no limit)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Appends the facts. Prints one line with the number of facts, the elapsed time and the rate."""
        self._check(options)
        run = _Run(
            options["stream"], options["count"], options["batch"], options["rate"], is_patient=options["patient"]
        )
        started = time.perf_counter()
        try:
            with as_command_errors(), written_by(options["instance"]):
                run.in_threads(options["threads"])
            seconds = time.perf_counter() - started
        except KeyboardInterrupt:
            raise CommandError(f"Interrupted after {run.done} facts.", returncode=130) from None
        self.stdout.write(
            f"appended {run.done} facts to {options['stream']} in {seconds:.2f} s: {run.done / seconds:,.0f}/s"
        )

    def _check(self, options: dict[str, Any]) -> None:
        try:
            registry.get(options["stream"])
            check_name(options["instance"])
        except (StreamError, ValueError) as error:
            raise CommandError(str(error), returncode=2) from error
        for name, most in (("count", math.inf), ("batch", reservation.LARGEST_COUNT), ("threads", MOST_THREADS)):
            if options[name] < 1:
                raise CommandError(f"--{name} must be at least 1, not {options[name]}.", returncode=2)
            if options[name] > most:
                raise CommandError(f"--{name} must be at most {most}, not {options[name]}.", returncode=2)
        if not 0 <= options["rate"] < math.inf:
            raise CommandError(f"--rate must be a number of facts a second, not {options['rate']}.", returncode=2)


def _passes(error: Exception) -> bool:
    return isinstance(error, driver.connection_lost) or isinstance(error.__cause__, driver.connection_lost)


class _Run:
    """The state that the threads of a run share, such as the number of facts to append and the first error.

    After the first error all threads end.
    """

    def __init__(self, stream: str, count: int, batch: int, rate: float, *, is_patient: bool = False) -> None:
        self.stream, self.left, self.batch, self.rate = stream, count, batch, rate
        self.is_patient = is_patient
        self.done = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._started = time.perf_counter()

    def in_threads(self, number: int) -> None:
        """Appends the run's facts in ``number`` threads. Raises the first error of a thread, after all threads have ended."""
        # Waits for events instead of join(): after an interrupted join(), Python 3.11 believes that the thread has
        # ended (a bug), and the next join() returns at once.
        ends = [threading.Event() for _ in range(number)]
        for thread, end in enumerate(ends):
            threading.Thread(target=self._work, args=(thread, end)).start()
        try:
            for end in ends:
                end.wait()
        except KeyboardInterrupt as interrupt:
            self._end(interrupt)
            for end in ends:
                end.wait()
        if self._error is not None:
            raise self._error

    def _next_count(self) -> int:
        with self._lock:
            if self._error is not None:
                return 0
            count = min(self.batch, self.left)
            self.left -= count
            return count

    def _work(self, thread: int, end: threading.Event) -> None:
        try:
            generator = load_generator.generator(self.stream, thread)
            while count := self._next_count():
                self._keep_rate()
                generator = self._append(generator, thread, count)
                with self._lock:
                    self.done += count
        except BaseException as error:  # noqa: BLE001 - `in_threads` raises it in the main thread
            self._end(error)
        finally:
            connections.close_all()
            end.set()

    def _append(self, generator: load_generator.LoadGenerator, thread: int, count: int) -> load_generator.LoadGenerator:
        """Appends ``count`` facts in one transaction. With ``--patient``, retries after temporary errors until it succeeds.

        Returns the generator to use for the next batch. After a retry this is a new generator, else it is
        ``generator``.
        """
        while True:
            try:
                generator.append(count)
            except (DjangoError, *driver.connection_lost) as error:
                if not (self.is_patient and _passes(error)) or self._ended.is_set():
                    raise
                # If COMMIT succeeded on the server and only its answer was lost, the retry appends the batch a second
                # time. So a patient run may append more facts than asked for.
                connections.close_all()
                self._ended.wait(PATIENCE_SECONDS)
                generator = load_generator.generator(
                    self.stream, thread
                )  # the old generator's memory may refer to facts that were rolled back
            else:
                return generator

    def _end(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._ended.set()

    def _keep_rate(self) -> None:
        if self.rate > 0:
            ahead = self.done / self.rate - (time.perf_counter() - self._started)
            if ahead > 0:
                self._ended.wait(ahead)
