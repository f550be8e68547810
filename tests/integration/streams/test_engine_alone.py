"""A project with the engine and none of the homeserver streams: ``INSTALLED_APPS = ["streams", "shop"]``."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from streams.catalog.declarations import declarations
from tests.support.own_project import OwnProject, as_it_was, made_for_module, made_project, tables_of
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.wire_client import ready_ports

pytestmark = pytest.mark.django_db(transaction=True)
SCHEMA = "engine_alone"
APPEND = """
from shop.models import Order
from streams import registry

orders = registry.get("orders")
for status in ("paid", "shipped"):
    (token,) = orders.append(Order(order_id="4711", status=status))
    orders.wait_for(token, 30.0)
print(registry.names(), [order.status for order in orders.read().facts])
"""
INVALIDATE = """
from streams.caches import Kept, invalidate
from streams.errors import UnknownStream
assert Kept("plain", print, print).mark() is None
try:
    invalidate("plain", ["k"])
except UnknownStream as error:
    print(error)
"""

HANDLERS = """
from shop.models import Order
from streams import handles

@handles(Order, reader="mailer", each=True, begin="oldest")
def mail(order):
    print(f"mail: {order.order_id}")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory, url_of_test_database, django_db_blocker) -> Iterator[OwnProject]:
    folder = tmp_path_factory.mktemp(SCHEMA)
    with made_for_module(django_db_blocker, made_project(folder, url_of_test_database, SCHEMA)) as project:
        yield project


@pytest.fixture
def project(made) -> Iterator[OwnProject]:
    with as_it_was(made) as project:
        yield project


def foreign() -> set[str]:
    """Tables and sequences of the homeserver streams."""
    tables = {table.name for declared in declarations() for table in declared.tables}
    return tables | {declared.sequence for declared in declarations()} | {"streams_typinguser"}


def test_the_engine_brings_no_foreign_table_and_no_foreign_stream(project):
    assert len(foreign()) > 20
    assert not tables_of(SCHEMA) & foreign()
    assert "streams_streamposition" in tables_of(SCHEMA)
    assert project.script(APPEND).strip() == "['orders'] ['paid', 'shipped']"
    assert "No changes detected" in project.run("makemigrations", "--check", "--dry-run")
    assert "orders" in project.run("check_streams", "--json")


def test_the_engine_alone_is_served_and_followed(project):
    server = project.start("runreplication", "--bind", "127.0.0.1:0")
    try:
        port = ready_ports(server)["replication"]
        project.script(APPEND)
        address = f"tcp://127.0.0.1:{port}"
        follow = ("follow", address, "--json", "--from", "orders=1", "--until", "orders=3", "--timeout", "60")
        said = [json.loads(line) for line in project.run(*follow).splitlines()]
    finally:
        server.terminate()
        server.wait(DEADLINE_SECONDS)
    assert [line["token"] for line in said][:2] == [2, 3], "more may have come at once, of the test before"


def test_dropping_a_value_by_hand_tells_which_app_is_wanted(project):
    assert "add 'streams.catalog' to INSTALLED_APPS" in project.script(INVALIDATE)


def test_the_catalog_is_added_later(project):
    with (project.folder / "settings.py").open("a") as file:
        file.write('INSTALLED_APPS += ["streams.catalog"]\n')
    project.run("migrate", "-v", "0")
    assert foreign() <= tables_of(SCHEMA)
    assert "No changes detected" in project.run("makemigrations", "--check", "--dry-run")
    code = (
        "from streams.homeserver.append import push_rules_changed as changed; print(changed('@a:x'), changed('@b:x'))"
    )
    assert project.script(code).strip() == "2 3"


def test_rooms_without_the_catalog_are_refused_where_tables_are_made(project):
    with (project.folder / "settings.py").open("a") as file:
        file.write('INSTALLED_APPS += ["state", "events"]\n')
    assert "events.E001" in project.run("migrate", status=1)


def test_a_reader_in_a_script_finds_its_handlers(project):
    handlers = project.folder / "shop/handlers.py"
    handlers.write_text(HANDLERS)
    try:
        project.script('from shop.models import Order; Order.stream.append(order_id="4713", status="paid")')
        out = project.script('from streams.follow import Reader; print(Reader("mailer").catch_up())')
        assert "mail: 4713" in out.splitlines()
    finally:
        handlers.unlink()
