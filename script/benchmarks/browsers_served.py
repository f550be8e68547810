"""What ``browsers`` measures: a stream by each encoder, as an ASGI application."""

from __future__ import annotations

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.urls import path

settings.ROOT_URLCONF = __name__
settings.MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]  # which sets Content-Length
settings.REPLSITE_BROWSER_ANSWER_SECONDS = 3_600.0  # none ends within a round, however busy the machine is
application = get_asgi_application()

from streams import durable, registry, stream_view  # noqa: E402 - after Django's set-up

_STREAM = registry.get("caches")
urlpatterns = [
    path("events/", stream_view(_STREAM, allow=lambda _: True, render=lambda fact: fact.stream_id)),
    path("stream/", durable(_STREAM, allow=lambda _: True, render=lambda fact: fact.stream_id)),
]
