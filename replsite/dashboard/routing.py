"""WebSocket addresses of the site; ``replsite.asgi`` wraps them with the session and the check of the origin."""

from channels.security.websocket import WebsocketDenier
from django.urls import path, re_path

from replsite.dashboard.consumer import LiveConsumer

__all__ = ["websocket_urlpatterns"]

websocket_urlpatterns = [
    path("ws/live/", LiveConsumer.as_asgi()),
    re_path("", WebsocketDenier.as_asgi()),  # no address of ours: without this an error with its trace for each request
]
