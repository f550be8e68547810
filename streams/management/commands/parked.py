"""``manage.py parked``: lists, retries and drops dead letters (facts that a handler could not take)."""

from __future__ import annotations

import json
from typing import Any, cast

from django.core.management.base import CommandError, CommandParser

from streams.errors import StreamError, UnknownReader
from streams.follow import drop_parked, parked_facts, retry_parked
from streams.follow.handlers import load_handlers
from streams.runtime.command_line import SiteCommand


class Command(SiteCommand):
    """The command ``parked``. The exit status is 1 if a retried fact failed again, and 2 for unusable arguments."""

    help = "List the facts that readers' handlers could not take, retry them, or drop them."

    examples = (
        ("parked", "all, newest attempt with its error"),
        ("parked list billing --trace", "of one reader, with tracebacks"),
        ("parked retry billing --token 1200", "one fact once more"),
        ("parked drop billing --all", "give all of them up"),
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "action",
            choices=("list", "retry", "drop"),
            nargs="?",
            default="list",
            help="what to do",
        )
        parser.add_argument("reader", nargs="?", help="of this reader; needed to retry and to drop")
        parser.add_argument("--stream", help="only of this stream")
        parser.add_argument("--token", type=int, help="only this fact")
        parser.add_argument("--all", action="store_true", help="with drop and no token: yes, all of them")
        parser.add_argument("--trace", action="store_true", help="with list: the tracebacks, too")
        parser.add_argument("--json", action="store_true", help="one JSON object a line")

    def handle(self, *args: Any, **options: Any) -> None:
        """Lists, retries or drops the dead letters that the arguments name. To drop, ``--token`` or ``--all`` is required."""
        load_handlers()
        action, which = options["action"], (options["reader"], options["stream"], options["token"])
        if action != "list" and options["reader"] is None:
            raise CommandError(f"{action}: say of which reader.", returncode=2)
        if action == "drop" and options["token"] is None and not options["all"]:
            raise CommandError("drop gives facts up: name one with --token, or say --all.", returncode=2)
        try:
            {"list": self._list, "retry": self._retry, "drop": self._drop}[action](which, options)
        except UnknownReader as error:
            raise CommandError(str(error), returncode=2) from error
        except StreamError as error:
            raise CommandError(str(error), returncode=1) from error

    def _list(self, which: tuple[str | None, str | None, int | None], options: dict[str, Any]) -> None:
        fields = (
            "reader",
            "stream",
            "token",
            "instance_name",
            "attempts",
            "parked_at",
            "tried_at",
            "error",
            "traceback",
            "rows",
        )
        count = 0
        found_facts = parked_facts(*which)
        # Raises an error if the table is missing. With the server-side cursor below, an error about the lost cursor would
        # hide this error.
        found_facts.exists()
        for parked in found_facts.iterator(500):
            count += 1
            found = {name: getattr(parked, name) for name in fields}
            if options["json"]:
                self.stdout.write(json.dumps(found, default=str))
                continue
            self.stdout.write(
                f"{parked.reader} {parked.stream} {parked.token} of {parked.instance_name}: {parked.attempts} attempts, "
                f"last {parked.tried_at:%Y-%m-%d %H:%M:%S}: {parked.error}"
            )
            if options["trace"]:
                self.stdout.write(parked.traceback)
        if not options["json"]:
            self.stdout.write(f"{count} facts are parked")

    def _retry(self, which: tuple[str | None, str | None, int | None], options: dict[str, Any]) -> None:
        handled, failed = retry_parked(cast("str", which[0]), *which[1:])
        self.stdout.write(json.dumps({"taken": handled, "failed": failed}) if options["json"] else f"{handled} taken")
        if failed:
            raise CommandError(f"{failed} facts failed again; see manage.py parked list --trace.", returncode=1)

    def _drop(self, which: tuple[str | None, str | None, int | None], options: dict[str, Any]) -> None:
        dropped = drop_parked(cast("str", which[0]), *which[1:])
        self.stdout.write(json.dumps({"dropped": dropped}) if options["json"] else f"{dropped} dropped")
