"""The nginx of ``docs/deployment/nginx/`` on ports of this machine, and a client that speaks HTTPS with it."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.deployment.places import FILES, program
from tests.support.certificates import Authority
from tests.support.ports import free_ports
from tests.support.waiting import DEADLINE_SECONDS, wait_until

NAME = "replsite.example.org"
NGINX = program("nginx")
_AROUND = """
daemon off;
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
    set_real_ip_from 127.0.0.0/8; real_ip_header X-Test-Address;
    types {{ text/css css; }}
    access_log {folder}/access.log combined;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
{page}
}}
"""


class Nginx:
    """The page's configuration with our ports, certificate and folder of static files."""

    def __init__(self, folder: Path, servers: list[int], times: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        certificate, key = self.authority.sign("proxy", server=True)
        self.plain_port, self.port = free_ports(2)
        page = (FILES / "nginx" / "replsite.conf").read_text()
        for old, new in (
            (r"listen \[::\].*", ""),
            (r"listen 80;", f"listen 127.0.0.1:{self.plain_port};"),
            (r"listen 443 ", f"listen 127.0.0.1:{self.port} "),
            (r"127\.0\.0\.1:8001", f"127.0.0.1:{servers[0]}"),
            (r"127\.0\.0\.1:8002", f"127.0.0.1:{servers[1]}"),
            (r"/etc/ssl/replsite/fullchain.pem", certificate),
            (r"/etc/ssl/replsite/privkey.pem", key),
            (r"/var/www/replsite/", f"{folder}/static/"),
            *((rf"({name}) +\w+;", rf"\1 {time};") for name, time in (times or {}).items()),
        ):
            page, found = re.subn(old, new, page)
            assert found, f"the page's configuration has no {old}"
        self.file = folder / "nginx.conf"
        user = "user root;" if os.geteuid() == 0 else ""  # the folder of a test is closed to others
        self.file.write_text(_AROUND.format(folder=folder, page=page, user=user))
        self.process: subprocess.Popen[bytes] | None = None

    def check(self) -> subprocess.CompletedProcess[str]:
        """``nginx -t``."""
        return subprocess.run(
            [*self._command(), "-t"], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )

    def start(self) -> None:
        self.process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL)
        wait_until(self._accepts, what="nginx accepts")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(DEADLINE_SECONDS)

    def _command(self) -> list[str]:
        assert NGINX is not None
        return [NGINX, "-p", str(self.folder), "-c", str(self.file), "-e", str(self.folder / "error.log")]

    def _accepts(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_SECONDS):
                return True
        except OSError:
            return False


class Browser:
    """Asks the proxy by its name, trusts its authority, keeps cookies."""

    def __init__(self, nginx: Nginx) -> None:
        self._port = nginx.port
        self._context = ssl.create_default_context(cafile=str(nginx.authority.file))
        self.cookies: dict[str, http.cookies.Morsel[str]] = {}

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """One request on a connection of its own: the answer and its body."""
        connection = http.client.HTTPSConnection(
            "localhost", self._port, timeout=DEADLINE_SECONDS, context=self._context
        )
        try:
            more = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, {"Host": NAME, **self._cookie(), **more})
            answer = connection.getresponse()
            self._keep(answer)
            return answer, answer.read()
        finally:
            connection.close()

    def ask_json(self, path: str, method: str = "GET", **headers: str) -> Any:
        answer, body = self.ask(path, method, **headers)
        assert answer.status == 200, (answer.status, body[:300])
        return json.loads(body)

    def log_in(self, user: str, password: str) -> None:
        """Through the login page; the form's token and the origin as a browser sends them."""
        self._admitted("/admin/login/")
        token = self.cookies["csrftoken"].value
        form = f"username={user}&password={password}&csrfmiddlewaretoken={token}&next=/admin/live/"
        answer, body = self._admitted(
            "/admin/login/", "POST", form.encode(), Origin=f"https://{NAME}", Referer=f"https://{NAME}/admin/login/",
            Content_Type="application/x-www-form-urlencoded",
        )  # fmt: skip
        assert answer.status == 302, (answer.status, body[:500])

    def _admitted(self, *request: Any, **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
        """The answer, once nginx takes logins of this address again: it counts those of the tests before."""

        def admitted() -> tuple[http.client.HTTPResponse, bytes] | None:
            answer = self.ask(*request, **headers)
            return None if answer[0].status == 429 else answer

        return wait_until(admitted)

    def _cookie(self) -> dict[str, str]:
        pairs = "; ".join(f"{name}={morsel.value}" for name, morsel in self.cookies.items())
        return {"Cookie": pairs} if pairs else {}

    def _keep(self, answer: http.client.HTTPResponse) -> None:
        from http.cookies import SimpleCookie

        for line in answer.headers.get_all("Set-Cookie") or []:
            self.cookies.update(SimpleCookie(line))
