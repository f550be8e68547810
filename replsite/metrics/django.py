"""Django's own request metrics with a bounded number of labels: a client may call its method whatever it likes."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django_prometheus.middleware import PrometheusAfterMiddleware

__all__ = ["BoundedRequestMetrics"]


class BoundedRequestMetrics(PrometheusAfterMiddleware):
    """In place of ``PrometheusAfterMiddleware``, which takes methods as they come for the latency by view and method."""

    def label_metric(self, metric: Any, request: HttpRequest, response: Any = None, **labels: Any) -> Any:
        """The metric for these labels."""
        if "method" in labels:
            labels["method"] = self._method(request)
        return super().label_metric(metric, request, response, **labels)
