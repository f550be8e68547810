"""Two servers with a page that appends, behind the shipped nginx."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conftest import end_processes
from tests.deployment.proxied import NAME, Nginx
from tests.support.ports import free_ports
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.wire_client import ready_ports

PASSWORD = "correct-horse-battery"


class ProxiedSite:
    """``times``: other times than nginx's file has."""

    def __init__(self, production: Any, folder: Path, times: Mapping[str, str] | None = None) -> None:
        self.production = production
        self.operator = f"boss-{folder.name}"  # of this site: modules share the database
        self.http, self.replication = free_ports(2), free_ports(2)
        self.servers: list[subprocess.Popen[str]] = []
        self.nginx = Nginx(folder, self.http, times)
        self.env = {
            "DJANGO_SETTINGS_MODULE": "tests.deployment.writing_site", "REPLSITE_ALLOWED_HOSTS": f"{NAME},127.0.0.1",
            "REPLSITE_HTTPS_ONLY": "true",
            "REPLSITE_STATIC_ROOT": str(folder / "static"), "REPLSITE_WRITER": "serve-{n}",
            "DJANGO_SUPERUSER_PASSWORD": PASSWORD,
        }  # fmt: skip

    def serve(self, number: int) -> subprocess.Popen[str]:
        address, wire = (f"127.0.0.1:{ports[number]}" for ports in (self.http, self.replication))
        return self.production.start("serve", "--http", address, "--replication", wire, **self.env)

    def start(self) -> None:
        self.production.manage("collectstatic", "--no-input", "-v", "0", **self.env)
        superuser = ["createsuperuser", "--no-input", "--username", self.operator, "--email", "boss@example.org"]
        self.production.manage(*superuser, **self.env)
        self.servers = [self.serve(0), self.serve(1)]
        for server in self.servers:
            ready_ports(server)
        self.nginx.start()

    def restart(self, number: int) -> None:
        """As ``systemctl restart`` does it."""
        self.servers[number].terminate()
        assert self.servers[number].wait(2 * DEADLINE_SECONDS) == 0
        end_processes([self.servers[number]])
        self.servers[number] = self.serve(number)
        ready_ports(self.servers[number])

    def stop(self) -> None:
        self.nginx.stop()
        end_processes(self.servers)
