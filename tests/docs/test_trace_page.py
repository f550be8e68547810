"""The page about traces: the span of a handler links to the span in which its fact was made, with the real SDK."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.own_project import made_schema
from tests.support.session import PROJECT
from tests.support.shop import Shop

PAGE = (PROJECT / "docs" / "how-to" / "trace-a-request.md").read_text()
MODELS = re.findall(r"```python\n# shop/models.py\n(.*?)```", PAGE, re.S)
#: Four readers of three facts: two appended in a span each, one in SQL.
HANDLERS = """
from shop.models import Order
from streams import handles
from streams.follow import Begin

failures = ["once"]


@handles(Order, reader="mails", each=True, begin=Begin.OLDEST, retry_seconds=0.01)
def mail(order):
    if failures:
        raise OSError(failures.pop())


handles(Order, reader="shared", each=True, by="order_id", begin=Begin.OLDEST)(lambda order: None)
handles(Order, reader="books", begin=Begin.OLDEST)(lambda chunk: None)


@handles(Order, reader="chain", each=True, begin=Begin.OLDEST)
def ship(order):
    if order.status == "paid":
        Order.stream.append(order_id=order.order_id, status="shipped")
"""
RUN = """
SET_UP
import json
import django; django.setup()
from django.core.management import call_command
from django.db import connection
from shop.models import Order
with span("one"):
    Order.stream.append(order_id="1", status="paid")
with span("two"):
    Order.objects.bulk_create([Order(order_id="2", status="open")])
with connection.cursor() as cursor:
    cursor.execute("INSERT INTO shop_order (order_id, status) VALUES ('3', 'open')")
for reader in ("mails", "shared", "books", "chain"):
    call_command("runhandlers", reader, "--once", verbosity=0)
print()
print(json.dumps([Order.stream.read().facts[3].traceparent, SPANS]))
"""
WITH_SDK = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
memory = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(memory))
span = trace.get_tracer("shop").start_as_current_span
"""
SPANS = """[
    [one.name, one.kind.name, one.status.status_code.name, one.context.span_id,
     [link.context.span_id for link in one.links], dict(one.attributes), one.parent is None]
    for one in memory.get_finished_spans()
]"""
WITHOUT = """
from contextlib import nullcontext as span
"""


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Iterator[Shop]:
    made = Shop(tmp_path, f"{database_url}?options=-csearch_path%3Dtraced", {"shop/handlers.py": HANDLERS})
    made.environment["DJANGO_SETTINGS_MODULE"] = "settings"
    with made_schema("traced"):
        made.run("manage.py", "makemigrations", "shop")
        (tmp_path / "shop" / "models.py").write_text(MODELS[0])
        made.run("manage.py", "makemigrations", "shop", "--name", "traced")
        made.run("manage.py", "migrate")
        yield made


def said(shop: Shop, set_up: str, spans: str) -> list[Any]:
    output = shop.run("-c", RUN.replace("SET_UP", set_up).replace("SPANS", spans))
    # The log of the failure is on standard error, which comes last.
    found: list[Any] = json.loads(next(line for line in output.splitlines() if line.startswith("[")))
    return found


def test_a_handlers_span_links_to_the_spans_of_its_facts(shop: Shop) -> None:
    of_chain, spans = said(shop, WITH_SDK, SPANS)
    one, two = spans[0][3], spans[1][3]
    assert [given[:2] for given in spans[:2]] == [["one", "INTERNAL"], ["two", "INTERNAL"]]
    by_reader: dict[str, list[Any]] = {}
    for name, kind, status, number, links, attributes, is_root in spans[2:]:
        assert (kind, is_root, attributes["messaging.destination.name"]) == ("CONSUMER", True, "orders")
        assert name == f"handle {attributes['messaging.consumer.group.name']}"
        by_reader.setdefault(name, []).append((status, links, number))
    of = {name: [found[:2] for found in all_of_it] for name, all_of_it in by_reader.items()}
    assert of.pop("handle mails") == [("ERROR", [one]), ("UNSET", [one]), ("UNSET", [two]), ("UNSET", [])]
    assert sorted(of.pop("handle shared")) == sorted([("UNSET", []), ("UNSET", [one]), ("UNSET", [two])])
    assert of.pop("handle books") == [("UNSET", [one, two])]
    # What a handler appends was made in its span.
    first = by_reader["handle chain"][0]
    assert of.pop("handle chain")[:3] == [("UNSET", [one]), ("UNSET", [two]), ("UNSET", [])]
    assert re.fullmatch(rf"00-[0-9a-f]{{32}}-{first[2]:016x}-[0-9a-f]{{2}}", of_chain)
    assert not of


@pytest.mark.scenario
def test_without_spans_or_the_package_facts_are_handled_all_the_same(shop: Shop) -> None:
    assert said(shop, WITHOUT, "list()") == ["", []]
    assert said(shop, f"import sys; sys.modules['opentelemetry'] = None{WITHOUT}", "list()") == ["", []]
    assert "streams.traces.TraceParentField()" in (shop.folder / "shop/migrations/0002_traced.py").read_text()
    models = MODELS[0].replace("TraceParentField, ", "").replace("TraceParentField()", "models.TextField()")
    (shop.folder / "shop" / "models.py").write_text(models)
    code = "import sys, django; django.setup(); import shop.handlers; "
    assert shop.run("-c", f"{code}print([name for name in sys.modules if 'opentelemetry' in name])") == "[]\n"
