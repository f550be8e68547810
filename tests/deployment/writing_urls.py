"""The site's pages, one that appends, and one that tells whom Django takes the client for."""

import os

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from replsite.site_urls import urlpatterns as site_urls
from streams import registry
from streams.catalog.models import CacheInvalidation
from streams.writing.name import writer_name


@csrf_exempt
def append_view(request: HttpRequest) -> JsonResponse:
    name = request.GET["name"]
    with transaction.atomic():
        (token,) = registry.get("caches").append(CacheInvalidation(cache_name=name, keys=["k"]))
    return JsonResponse({"token": token, "writer": writer_name(), "process": os.getpid()})


def client_view(request: HttpRequest) -> JsonResponse:
    return JsonResponse(
        {"client": request.META["REMOTE_ADDR"], "secure": request.is_secure(), "host": request.get_host()}
    )


def slow_view(request: HttpRequest) -> JsonResponse:
    """Answers when nobody else holds the lock any more."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(4711)")
    return JsonResponse({"answered": True})


urlpatterns = [path("append", append_view), path("client", client_view), path("slow", slow_view), *site_urls]
