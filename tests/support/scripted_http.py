"""An HTTP server in a thread that answers what the test tells it to, and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.waiting import DEADLINE_SECONDS


class ScriptedHttp:
    """``answers`` are given one after another, the last one again and again: (status, body)."""

    def __init__(self, answer: Callable[[str], tuple[int, bytes]]) -> None:
        self.paths: list[str] = []
        self.secrets: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.paths.append(self.path)
                outer.secrets.append(self.headers.get("Authorization"))
                status, body = answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.005,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def scripted_http(*answers: tuple[int, bytes]) -> Iterator[ScriptedHttp]:
    left = list(answers)
    scripted = ScriptedHttp(lambda path: left.pop(0) if len(left) > 1 else left[0])
    scripted._thread.start()
    try:
        yield scripted
    finally:
        scripted.server.shutdown()
        scripted.server.server_close()
        scripted._thread.join(DEADLINE_SECONDS)
