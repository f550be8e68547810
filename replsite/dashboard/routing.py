"""WebSocket addresses of the site; ``replsite.asgi`` wraps them with the session and the check of the origin."""

from django.urls import path

from replsite.dashboard.consumer import LiveConsumer

__all__ = ["websocket_urlpatterns"]

websocket_urlpatterns = [path("ws/live/", LiveConsumer.as_asgi())]
