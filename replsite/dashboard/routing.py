"""Declares the WebSocket addresses of the site. ``replsite.asgi`` adds the session and the check of the origin."""

from channels.security.websocket import WebsocketDenier
from django.urls import path, re_path

from replsite.dashboard.consumer import LiveConsumer

__all__ = ["websocket_urlpatterns"]

websocket_urlpatterns = [
    path("ws/live/", LiveConsumer.as_asgi()),
    # Any other address is refused. Without this, each request to one ends in an error with a traceback.
    re_path("", WebsocketDenier.as_asgi()),
]
