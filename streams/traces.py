"""A field that takes the trace of the request to the handlers of its fact, by OpenTelemetry.

The field keeps the span in which a fact was made, as the W3C's ``traceparent``. A handler then runs in a span of its own,
which links to the spans of its facts. Without the package ``opentelemetry-api`` the text is empty and there are no spans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.db import models

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    trace = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from opentelemetry.trace import Link

#: The name that the W3C gives the text.
_NAME = "traceparent"
#: OpenTelemetry keeps as many links of a span, unless it is set otherwise.
_MOST_LINKS = 128


def current_span() -> str:
    """Returns the current span as a ``traceparent``. The text is empty outside of any span."""
    carrier: dict[str, str] = {}
    if trace is not None:
        TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(_NAME, "")


class TraceParentField(models.CharField):  # type: ignore[type-arg]  # generic in its stubs only
    """The ``traceparent`` of the span in which a fact was made. It is empty for a fact that SQL has inserted."""

    _OPTIONS = {"max_length": 55, "default": current_span, "db_default": "", "blank": True, "editable": False}

    def __init__(self, **options: Any) -> None:
        super().__init__(**(options | self._OPTIONS))

    def deconstruct(self) -> Any:
        *place, options = super().deconstruct()
        return *place, {name: value for name, value in options.items() if name not in self._OPTIONS}

    def handler_span(self, reader: str, stream: str, facts: Iterable[Any]) -> AbstractContextManager[Any]:
        """Returns a context manager: the span of a handler, with links to the spans in which its facts were made.

        ``facts`` are model instances, or rows as they are sent.
        """
        if trace is None:
            return nullcontext()
        texts = (fact.get(self.name) if isinstance(fact, dict) else getattr(fact, self.attname, "") for fact in facts)
        return trace.get_tracer("streams").start_as_current_span(
            f"handle {reader}",
            kind=trace.SpanKind.CONSUMER,
            links=list(islice(_links(texts), _MOST_LINKS)),
            attributes={
                "messaging.operation.type": "process",
                "messaging.destination.name": stream,
                "messaging.consumer.group.name": reader,
            },
        )


def _links(texts: Iterable[str | None]) -> Iterator[Link]:
    for text in dict.fromkeys(texts):
        context = TraceContextTextMapPropagator().extract({_NAME: text or ""})
        span = trace.get_current_span(context).get_span_context()
        if span.is_valid:
            yield trace.Link(span)
