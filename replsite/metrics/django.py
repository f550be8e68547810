"""Bounds the number of labels in Django's own request metrics. A client may send any text as its HTTP method."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django_prometheus.middleware import PrometheusAfterMiddleware


class BoundedRequestMetrics(PrometheusAfterMiddleware):
    """A ``PrometheusAfterMiddleware`` that uses only known HTTP methods as labels.

    The original uses any method as a label of the latency by view and method.
    """

    def label_metric(self, metric: Any, request: HttpRequest, response: Any = None, **labels: Any) -> Any:
        """Returns the metric for these labels, with an unknown method replaced by django-prometheus's catch-all."""
        if "method" in labels:
            labels["method"] = self._method(request)
        return super().label_metric(metric, request, response, **labels)
