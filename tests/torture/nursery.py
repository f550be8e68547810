"""Starts the processes of a torture run by forking: Django is loaded once, so that a killed process is replaced at once.

Reads one JSON object a line from stdin, ``{"role", "orders", "stderr"}``, and answers with the number of the process.
When stdin ends, whatever still runs is killed. Never opens a database connection itself.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import django


def _server(orders: dict[str, Any]) -> None:
    """The command itself, as an operator starts it."""
    from django.core.management import execute_from_command_line

    execute_from_command_line(["manage.py", "runreplication", "--bind", f"127.0.0.1:{orders['port']}"])


def _main_of(role: str) -> Any:
    from tests.torture import follower, writer

    return {"writer": writer.main, "follower": follower.main, "server": _server}[role]


def _live(order: dict[str, Any]) -> None:
    """The child's life, with its errors in its own file."""
    descriptor = os.open(Path(order["stderr"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDWR)
    for target, source in ((0, nothing), (1, nothing), (2, descriptor)):
        os.dup2(source, target)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    faulthandler.register(signal.SIGUSR1)  # where it hangs, for `Running.last_words`
    try:
        _main_of(order["role"])(order["orders"])
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - the last thing it does
        traceback.print_exc()
        status = 70
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Fork until stdin ends."""
    django.setup()
    import streams.replication.client.follower
    import streams.writing.reservation  # noqa: F401 - loaded once for all

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are buried by the system
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: list[int] = []  # descriptors: the number of a process may be given to another one
    for line in sys.stdin:
        number = os.fork()
        if number == 0:
            _live(json.loads(line))
        children.append(os.pidfd_open(number))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
    for child in children:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
