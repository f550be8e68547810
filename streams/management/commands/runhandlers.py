"""``manage.py runhandlers [READER …]``: runs the handlers of named readers, each reader in a thread, until a signal."""

from __future__ import annotations

import gc
import shlex
import signal
import threading
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import Error as DjangoError

from streams.db import driver
from streams.errors import StreamError, UnknownReader
from streams.follow import Reader, readers
from streams.follow.handlers import load_handlers
from streams.runtime.command_line import SiteCommand
from streams.runtime.text import one_line


class Command(SiteCommand):
    """The command ``runhandlers``.

    The exit status is 0 after SIGINT or SIGTERM, or with ``--once`` when all readers have caught up. It is 1 if a
    reader failed, and 2 if a reader's name is unknown.
    """

    help = "Run the handlers of named readers (all by default); see streams.follow. Prints 'ready readers=…' once they run."

    examples = (
        ("runhandlers", "all readers that have handlers"),
        ("runhandlers billing", "one"),
        ("runhandlers --once", "what is there now, then end"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("readers", nargs="*", metavar="READER", help="run these (default: all that have handlers)")
        parser.add_argument("--once", action="store_true", help="handle what is there now, then end")

    def is_service(self, options: Mapping[str, Any]) -> bool:
        return not options.get("once")

    def handle(self, *args: Any, **options: Any) -> None:
        """Runs the readers side by side, each in a thread.

        If a reader fails, stops all readers, and raises the error of the failed reader as `CommandError`.
        """
        load_handlers()
        names = options["readers"] or readers()
        if not names:
            raise CommandError(
                "No handler is declared: decorate functions with streams.handles in a module 'handlers' of an "
                "installed app.",
                returncode=2,
            )
        waiting, lock = set(names), threading.Lock()

        def positioned(reader: Reader) -> None:
            with lock:
                if waiting == {reader.name}:
                    # Before the last one handles a fact: what is appended after the announcement is certain to be handled.
                    self.announce_ready(f"ready readers={','.join(each.name for each in running)}")
                    for each in running:
                        for stream in each.started_at_now():
                            self.stdout.write(_beginning(each.name, stream))
                waiting.discard(reader.name)

        try:
            running = [Reader(name, positioned=positioned) for name in dict.fromkeys(names)]
        except UnknownReader as error:
            raise CommandError(str(error), returncode=2) from error
        except StreamError as error:
            raise CommandError(str(error), returncode=1) from error
        gc.freeze()  # loaded modules live until the end: the collector need not visit them each time
        self._run(running, once=options["once"])

    def _run(self, running: list[Reader], *, once: bool) -> None:
        errors: list[BaseException] = []

        def run(reader: Reader) -> None:
            try:
                reader.catch_up() if once else reader.run()
            except BaseException as error:  # noqa: BLE001 - raised below, in the main thread
                errors.append(error)
                stop()

        def stop(*_: Any) -> None:
            for reader in running:
                reader.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        threads = [threading.Thread(target=run, args=(reader,)) for reader in running]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for reader in running:
            self.stdout.write(f"{reader.name}: {reader.facts_handled} facts handled, {reader.facts_parked} parked")
        if errors:
            raise CommandError(_words(errors[0]), returncode=1) from errors[0]


def _beginning(reader: str, stream: str) -> str:
    command = f"manage.py resync reader {shlex.quote(reader)} --from {shlex.quote(stream)}=0"
    return (
        f"{reader}: reads {stream} for the first time, and begins now: it gets the facts that are appended from now on. To "
        f"begin at the first fact, stop it, then: {command} (or declare the handler with begin=Begin.OLDEST)"
    )


def _words(error: BaseException) -> str:
    return driver.explain(error) if isinstance(error, driver.DatabaseError | DjangoError) else one_line(error)
