"""A server that takes JSON POSTs, as a chat's webhook does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Webhook:
    """What was posted, and the status that is answered."""

    def __init__(self, port: int) -> None:
        self.got: list[dict[str, Any]] = []
        self.status = 200
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.url = f"http://127.0.0.1:{port}/hooks/secret"


@contextmanager
def webhook(port: int = 0) -> Iterator[Webhook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hook.may_answer.wait()
            if hook.status == 200:
                hook.got.append(json.loads(body))
            self.send_response(hook.status)
            if hook.status == 302:
                self.send_header("Location", hook.url)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        hook = Webhook(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hook
        finally:
            server.shutdown()
            thread.join()
