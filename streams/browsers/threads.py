"""Two threads that run the synchronous code of all browsers of a process, with their database connections.

Django gives each request a thread, and keeps the thread until the response ends. 2,000 browsers would keep 2,000
threads with a database connection each. So one thread runs the database reads of all browsers. Another thread runs the
permission checks, so that a slow check does not delay facts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections

if TYPE_CHECKING:
    from django.http import HttpRequest


#: Key in the scope: a function by which a request gives its thread back to the web server.
LEAVE = "streams.leave"


class SharedThread:
    """A thread for synchronous calls, shared by all browsers of the process.

    In a test with Django's ``AsyncClient``, requests have no threads, and calls run in the thread of the test's
    synchronous code, so that they see the transaction of the test: asgiref prefers this thread.
    """

    def __init__(self, *, keeps_connections: bool) -> None:
        self._keeps_connections = keeps_connections
        self._context = ThreadSensitiveContext()
        self._calls = 0

    def use(self) -> None:
        """Makes all further synchronous calls of the current task run in the shared thread. For a task of our own."""
        SyncToAsync.thread_sensitive_context.set(self._context)

    def use_for_request(self) -> None:
        """Makes all further synchronous calls of a request's task run in the shared thread, unless it is a test's task."""
        if SyncToAsync.thread_sensitive_context.get(None) is not None:
            self.use()

    async def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Calls ``call(*arguments)`` in the shared thread, and returns its result."""
        self._calls += 1
        try:
            return await asyncio.create_task(
                self._run(call, arguments)
            )  # a task of its own, because ``use`` applies to all further calls of a task
        finally:
            self._calls -= 1

    async def _run(self, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self.use()
        return await sync_to_async(self._called, thread_sensitive=True)(call, arguments)

    def _called(self, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        try:
            return call(*arguments)
        finally:
            # Connections are closed when no further call waits, and not after each call: connecting takes longer than most calls.
            is_idle = self._calls <= 1 and not self._keeps_connections
            for connection in connections.all(initialized_only=True):
                # Django would also close a connection with an open transaction, such as the connection of a test.
                if (is_idle or connection.errors_occurred) and not connection.in_atomic_block:
                    connection.close_if_unusable_or_obsolete()


READS = SharedThread(keeps_connections=True)
CHECKS = SharedThread(keeps_connections=False)


def leave_the_requests_thread(request: HttpRequest) -> None:
    """Ends the thread that Django has made for this request, and the thread's database connections.

    Middleware may have used these connections. A thread that the web server has provided is not ended, because other
    requests use it. It is given back by the function ``LEAVE`` of the request's scope.
    """
    getattr(request, "scope", {}).get(LEAVE, lambda: None)()
    context = SyncToAsync.thread_sensitive_context.get(None)
    if context is None or getattr(context, "_executor", None) is not None:
        return
    executor: Any = SyncToAsync.context_to_thread_executor.pop(context, None)
    if executor is not None:
        executor.submit(connections.close_all)
        executor.shutdown(wait=False)
