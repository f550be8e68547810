"""A site with a data folder of its own: commands and servers in real processes, on the embedded server of that folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil

from replsite.postgres.server import EmbeddedServer
from tests.conftest import end_processes
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.warm_start import WARM
from tests.support.wire_client import ready_ports

__all__ = ["OwnFolder", "Serving"]


class Serving:
    """A process of ``serve`` that accepts connections."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        ports = ready_ports(process)
        self.http, self.replication = ports["http"], ports["replication"]


class OwnFolder:
    """Processes on the data folder; ``close`` ends them and the folder's server."""

    def __init__(self, path: Path, env: dict[str, str] | None = None) -> None:
        self.path, self.server = path, EmbeddedServer(path)
        self._env = env or {}
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, log: Path | None = None) -> subprocess.Popen[str]:
        """Starts ``manage.py``; its standard error goes to the test's own, or to ``log``."""
        kept = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        environment = {**kept, "REPLSITE_DATA_DIR": str(self.path), **self._env}
        more = {} if log is None else {"stderr": log.open("ab")}
        try:
            process = WARM.popen(arguments, environment, stdout=subprocess.PIPE, **more)
        finally:
            for file in more.values():
                file.close()
        self._started.append(process)
        return process

    def serve(self) -> subprocess.Popen[str]:
        """Starts ``serve`` on free ports; ``Serving`` waits for it."""
        return self.start("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0")

    def run(self, *arguments: str) -> str:
        """Runs ``manage.py`` to its successful end; what it printed."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=4 * DEADLINE_SECONDS)
        assert process.returncode == 0, output
        return output

    def url(self) -> str:
        """``DATABASE_URL`` of the running server."""
        server, password = self.server.running(), self.server.password_file.read_text()
        assert server is not None
        return f"postgres://postgres:{password}@127.0.0.1:{server.port}/replsite"

    def servers(self) -> list[int]:
        """The processes of PostgreSQL that serve the folder, without their children."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "-D" in words and str(self.server.cluster) in words:  # its children have other titles
                found.append(process.pid)
        return found

    def is_stopped(self) -> bool:
        """No process of PostgreSQL."""
        return not self.servers()

    def close(self) -> None:
        """Ends what runs."""
        end_processes(self._started)
        self.server.stop()
