"""Accepts the hosts of ``REPLSITE_REPLICATION_HOSTS`` for catch-up requests, and for nothing else.

In the header ``Host``, a worker of Synapse sends the name of a process, such as ``Host: master``. It is the process from
which the worker wants an answer. If this name were in ``ALLOWED_HOSTS``, it would be valid for every page, and as the
origin of WebSockets. The host proves nothing. The view decides by the secret in the request, or by the client's address,
which clients are allowed.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.http.request import split_domain_port, validate_host

from streams.conf import stream_settings

__all__ = ["PATH", "ReplicationHosts"]

#: Prefix of the requests of workers. There are no pages for people below it.
PATH = "/_synapse/replication/"


class ReplicationHosts:
    """Django middleware that accepts the hosts of ``REPLSITE_REPLICATION_HOSTS`` for catch-up requests.

    It must come before all middleware that reads the host.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        hosts = stream_settings().replication_hosts
        if hosts and request.path_info.startswith(PATH):
            host = request.META.get("HTTP_HOST", "")
            domain, _ = split_domain_port(host)
            if domain and validate_host(domain, hosts):
                request.get_host = lambda: host  # type: ignore[method-assign]
        return self._get_response(request)
