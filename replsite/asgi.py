"""Defines the ASGI application, with three protocols side by side.

``http`` and ``websocket`` are for people and their tools (admin, live page, metrics, health). ``tcp`` is the replication
port (``docs/reference/tcp-scope.md``). A server without ``tcp``, such as plain daphne, uses the other two. Only servers
import this module. So the import also opens the port for the process's own metrics, if ``REPLSITE_METRICS_PORTS`` names a
port.
"""

from __future__ import annotations

import importlib.util
import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "replsite.settings")
_http = get_asgi_application()  # sets Django up: the following imports need the apps

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.apps import apps  # noqa: E402
from django.conf import settings  # noqa: E402
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler  # noqa: E402

from replsite.http.database_down import DenyWhileDatabaseAway  # noqa: E402
from replsite.http.handshake_places import HandshakePlaces  # noqa: E402
from replsite.http.proxy import Forwarded  # noqa: E402
from replsite.http.request_places import ClientLimit, RequestPlaces  # noqa: E402
from replsite.http.websocket_origin import SameOrigin  # noqa: E402
from replsite.metrics.process import listen  # noqa: E402
from streams.replication.server.consumer import ReplicationConsumer  # noqa: E402

if importlib.util.find_spec("replsite.dashboard") and importlib.util.find_spec("replsite.dashboard.routing"):
    from replsite.dashboard.routing import websocket_urlpatterns
else:  # the site without its live page
    websocket_urlpatterns = []

if settings.DEBUG and apps.is_installed("django.contrib.staticfiles"):  # as Django's own `runserver` does
    _http = ASGIStaticFilesHandler(_http)

application = ProtocolTypeRouter(
    {
        "http": Forwarded(ClientLimit(RequestPlaces(_http))),
        "websocket": Forwarded(
            ClientLimit(SameOrigin(DenyWhileDatabaseAway(HandshakePlaces(URLRouter(websocket_urlpatterns)))))
        ),
        "tcp": ReplicationConsumer.as_asgi(),
    }
)
listen()
