"""Functions of this process that want to hear what workers tell everybody, such as REMOTE_SERVER_UP.

Handlers are called on the event loop of whatever listens (replication server or follower), so they must be quick; what they
raise is logged and goes no further.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from streams.replication.protocol.commands import Command
from streams.runtime.logs import get_logger

__all__ = ["hear", "tell"]

log = get_logger(__name__)
C = TypeVar("C", bound=Command)

_handlers: dict[type[Command], list[Callable[[Any], None]]] = {}


def hear(kind: type[C], handler: Callable[[C], None]) -> Callable[[], None]:
    """Call ``handler`` with every command of that kind from now on; the returned function ends it."""
    handlers = _handlers.setdefault(kind, [])
    handlers.append(handler)

    def stop() -> None:
        if handler in handlers:
            handlers.remove(handler)

    return stop


def tell(command: Command) -> None:
    """Call all who want to hear this."""
    for handler in list(_handlers.get(type(command), ())):
        try:
            handler(command)
        except Exception:
            log.exception("hearing.handler_failed", command=command.WORD)
