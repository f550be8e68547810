"""Defines the ASGI application, with two protocols side by side.

``http`` is for people and their tools (admin, live page, metrics, health). ``tcp`` is the replication port
(``docs/reference/tcp-scope.md``). A server without ``tcp``, such as plain daphne, uses ``http`` only. Only servers import this
module. So the import also opens the port for the process's own metrics, if ``REPLSITE_METRICS_PORTS`` names a port.
"""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
_http = get_asgi_application()  # sets Django up: the following imports need the apps

from channels.routing import ProtocolTypeRouter  # noqa: E402
from channels.security.websocket import WebsocketDenier  # noqa: E402
from django.apps import apps  # noqa: E402
from django.conf import settings  # noqa: E402
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler  # noqa: E402

from replsite.http.proxy import Forwarded  # noqa: E402
from replsite.http.request_places import RequestPlaces  # noqa: E402
from replsite.metrics.process import listen  # noqa: E402
from streams.replication.server.consumer import ReplicationConsumer  # noqa: E402

if settings.DEBUG and apps.is_installed("django.contrib.staticfiles"):  # as Django's own `runserver` does
    _http = ASGIStaticFilesHandler(_http)

application = ProtocolTypeRouter(
    {
        "http": Forwarded(RequestPlaces(_http)),
        "websocket": WebsocketDenier.as_asgi(),  # without it, plain daphne logs a traceback for each request to open one
        "tcp": ReplicationConsumer.as_asgi(),
    }
)
listen()
