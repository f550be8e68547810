"""Handlers of this process for commands that a worker sends to all other workers, such as REMOTE_SERVER_UP.

Handlers are called on the event loop of the replication server or follower, so they must be quick. An exception of a
handler is logged and not raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from streams.replication.protocol.commands import Command
from streams.runtime.logs import get_logger

log = get_logger(__name__)
C = TypeVar("C", bound=Command)

_handlers: dict[type[Command], list[Callable[[Any], None]]] = {}


def subscribe(kind: type[C], handler: Callable[[C], None]) -> Callable[[], None]:
    """Registers a handler for all commands of the class ``kind``. Returns a function that ends the subscription."""
    handlers = _handlers.setdefault(kind, [])
    handlers.append(handler)

    def stop() -> None:
        if handler in handlers:
            handlers.remove(handler)

    return stop


def dispatch(command: Command) -> None:
    for handler in list(_handlers.get(type(command), ())):  # a copy: a handler may end its own subscription
        try:
            handler(command)
        except Exception:
            log.exception("hearing.handler_failed", command=command.WORD)
