"""The page about evolving a stream: each step with the program before and after it at once, on one database."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.own_project import made_schema
from tests.support.session import PROJECT, python_path
from tests.support.shop_settings import SHOP_SETTINGS
from tests.support.waiting import DEADLINE_SECONDS, wait_until

PAGE = (PROJECT / "docs" / "how-to" / "evolve-a-stream.md").read_text()
VERSIONS = dict(re.findall(r"```python\n# ([^\n]*)\n(.*?)```", PAGE, re.S))
SETTINGS = f"""{SHOP_SETTINGS}
REPLSITE_WRITER = "web-{{n}}"
"""
#: Prints each row. A chunk with the order REFUSED fails, as in a program with a mistake.
HANDLERS = """
import json, os
from streams.follow import Begin, OnFailure, handles

def show(chunk):
    found = [(row, order) for fact in chunk for row, order in zip(fact.rows, fact.instances)]
    if any(row["order_id"] == os.environ.get("REFUSED") for row, _ in found):
        raise ValueError
    for row, order in found:
        print(json.dumps({"row": row, "order": order.order_id}), flush=True)

for reader in os.environ["READERS"].split():
    handles("orders", reader=reader, begin=Begin.OLDEST, on_failure=OnFailure.PARK, attempts=1)(show)
"""
#: Executes the code of each line, and answers with what it printed and its error. Starting Django takes longer than all of it.
LOOP = """
import builtins, contextlib, io, json, sys, traceback
import django
django.setup()
builtins.input = lambda *asked: "y"
for line in sys.stdin:
    out, error = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(out):
            exec(json.loads(line), {})
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps([out.getvalue(), error]), flush=True)
"""


class Program:
    """One version of the project, in a folder and a process of its own."""

    def __init__(self, folder: Path, version: str, database_url: str, before: Program | None = None) -> None:
        self.folder = folder
        self.reader = folder.name
        shop = folder / "shop"
        (shop / "migrations").mkdir(parents=True)
        (shop / "__init__.py").touch()
        (shop / "migrations" / "__init__.py").touch()
        (folder / "settings.py").write_text(SETTINGS)
        (shop / "handlers.py").write_text(HANDLERS)
        (shop / "models.py").write_text(VERSIONS[version])
        if before is not None:
            shutil.copytree(before.folder / "shop" / "migrations", shop / "migrations", dirs_exist_ok=True)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("REPLSITE_WRITER")},
            "DATABASE_URL": f"{database_url}?options=-csearch_path%3Devolve",
            "PYTHONPATH": python_path(folder, PROJECT),
            "DJANGO_SETTINGS_MODULE": "settings",
            "PYTHONDONTWRITEBYTECODE": "1",
            "READERS": f"{self.reader} {before.reader if before else ''}",
        }
        self.process = self.start("-c", LOOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, *arguments]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True, **options)

    def end(self) -> None:
        with self.process:
            self.process.stdin.close()  # type: ignore[union-attr]
            self.process.wait(DEADLINE_SECONDS)

    def python(self, code: str, *, fails: bool = False) -> str:
        """What the code printed, or its error."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(code) + "\n")
        stdin.flush()
        printed, error = json.loads(stdout.readline())
        assert bool(error) is fails, error
        return error or printed

    def django(self, *arguments: str) -> str:
        return self.python(f"from django.core.management import call_command; call_command(*{arguments!r})")

    def migrate(self) -> None:
        """Makes the step's migration and applies it; nothing is left to warn of."""
        self.python(
            "from django.core.management import call_command\n"
            "call_command('makemigrations', 'shop', skip_checks=False)\n"
            "call_command('migrate', verbosity=0)\n"
            "call_command('makemigrations', check_changes=True)\n"
            "call_command('check', fail_level='WARNING', databases=['default'])"
        )

    def append(self, **given: str) -> None:
        self.python(f"from shop.models import Order; Order.stream.append(Order(**{given!r}))")

    def handled(self, refused: str = "") -> list[dict[str, Any]]:
        """The rows that the program's reader has not handled yet, read from the table."""
        self.python(f"import os; os.environ['REFUSED'] = {refused!r}")
        return rows_in(self.django("runhandlers", self.reader, "--once"))


def rows_in(said: str) -> list[dict[str, Any]]:
    return [json.loads(line)["row"] for line in said.splitlines() if line.startswith("{")]


@pytest.fixture
def programs(tmp_path: Path, database_url: str) -> Iterator[Any]:
    made: list[Program] = []

    def make(version: str) -> Program:
        made.append(Program(tmp_path / f"p{len(made)}", version, database_url, made[-1] if made else None))
        return made[-1]

    with made_schema("evolve"):
        try:
            yield make
        finally:
            for program in made:
                program.end()


def fact_of(row: dict[str, Any]) -> str:
    return f"from shop.models import Order\nprint(vars(Order.stream.fact({row!r}, token=2)))"


@pytest.mark.timeout(900)
def test_the_steps_of_the_page(programs: Any) -> None:
    """Both programs append, and both handle everything, each in its own version."""
    one = programs("version 1")
    one.migrate()
    one.append(order_id="1", customer="ann")
    one.append(order_id="bad", customer="eve", note="parked")
    assert one.handled(refused="bad") == [{"order_id": "1", "customer": "ann", "note": "", "@version": 1}]

    two = programs("version 2")
    two.migrate()
    one.append(order_id="3", customer="bob")
    two.append(order_id="4", customer="cid", currency="USD")
    assert one.handled() == [
        {"order_id": "3", "customer": "bob", "note": "", "@version": 1},
        {"order_id": "4", "customer": "cid", "note": "", "@version": 1},
    ]
    assert [(row["order_id"], row["currency"]) for row in two.handled()] == [
        ("1", "EUR"), ("bad", "EUR"), ("3", "EUR"), ("4", "USD"),
    ]  # fmt: skip
    newer = {"order_id": "5", "customer": "dan", "note": "", "currency": "USD", "@version": 2}
    assert "'dan'" in one.python(fact_of(newer))
    # The dead letter has a row of version 1, and the newer program handles it.
    assert rows_in(two.django("parked", "retry", one.reader)) == [
        {"order_id": "bad", "customer": "eve", "note": "parked", "currency": "EUR", "@version": 2}
    ]

    three = programs("version 3")
    three.migrate()
    with_server(two, three)
    two.append(order_id="6", customer="fay")
    three.append(order_id="7", buyer="gus")
    assert [(row["order_id"], row["customer"]) for row in two.handled()][-2:] == [("6", "fay"), ("7", "gus")]
    assert [(row["order_id"], row["buyer"]) for row in three.handled()][-2:] == [("6", "fay"), ("7", "gus")]
    refused = two.python(
        fact_of({"order_id": "8", "buyer": "hal", "note": "", "currency": "EUR", "@version": 3}), fails=True
    )
    assert "UnknownVersion: Stream 'orders': a row of version 3 lacks customer, which version 2 has" in refused

    four = programs("version 4")
    four.migrate()
    three.append(order_id="9", buyer="ida", note="by three")
    four.append(order_id="10", buyer="joe")
    assert [(row["order_id"], row["note"]) for row in three.handled()][-2:] == [("9", "by three"), ("10", "")]
    assert four.handled()[-1] == {"order_id": "10", "buyer": "joe", "currency": "EUR", "@version": 4}
    assert "'eve'" in four.python(fact_of({"order_id": "bad", "customer": "eve", "note": "parked", "@version": 1}))

    last = programs("version 4 without note")
    last.append(order_id="11", buyer="kim")
    four.append(order_id="12", buyer="lea", note="by four")
    assert four.handled() == last.handled()[-2:]
    last.migrate()
    last.append(order_id="13", buyer="max")
    assert last.handled() == [{"order_id": "13", "buyer": "max", "currency": "EUR", "@version": 4}]


def with_server(older: Program, newer: Program) -> None:
    """The older program serves and appends; the newer one follows it, and makes of a row a fact of its own version."""
    out = newer.folder / "followed"
    with (
        older.start("-m", "django", "runreplication", "--bind", "127.0.0.1:0", stdout=subprocess.PIPE) as server,
        out.open("w") as followed,
    ):
        try:
            address = (server.stdout.readline() if server.stdout else "").split("=")[1].strip()
            # Nothing from the table, which has the newer program's columns: only what the server sends.
            follow = ("-m", "django", "follow", f"tcp://{address}", "--catch-up", "none", "--json")

            def received() -> list[str]:
                older.append(order_id="wire", customer="zoe")
                return out.read_text().splitlines()

            with newer.start(*follow, stdout=followed) as follower:
                try:
                    line = wait_until(received, 2 * DEADLINE_SECONDS)[0]
                finally:
                    follower.terminate()
        finally:
            server.terminate()
    row = json.loads(line)["row"]
    assert (row["@version"], row["customer"]) == (2, "zoe")
    assert "'zoe'" in newer.python(fact_of(row))
