"""The page about leaving an outbox table: its steps on one database, with the version before and after each at once."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.support.own_project import made_schema
from tests.support.session import PROJECT
from tests.support.shop import Shop
from tests.support.waiting import DEADLINE_SECONDS

PAGE = (PROJECT / "docs" / "how-to" / "migrate-from-an-outbox-table.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# ([^\n]*)\n(.*?)```", PAGE, re.S))
SETUP = "import django; django.setup()\n"
INVOICES = "from shop.models import Invoice; print(*Invoice.objects.values_list('order_id', flat=True))"
#: Pays and polls, while the reader of another process claims rows of the same table.
POLL_ON = """
import sys
from pathlib import Path
from shop.poller import poll
from shop.services import pay

for number in range(60):
    pay(f"both-{number}")
    poll()
    if number == 5:
        print("polling", flush=True)
"""


class Version(Shop):
    """One version of the program, in a folder of its own."""

    def __init__(self, folder: Path, database_url: str, before: Version | None, **steps: str) -> None:
        files = {f"shop/{name}.py": BLOCKS[f"{step}: shop/{name}.py"] for name, step in steps.items()}
        super().__init__(folder, database_url, files)
        if before is not None:
            shutil.copytree(before.folder / "shop/migrations", folder / "shop/migrations", dirs_exist_ok=True)
        self.environment["DJANGO_SETTINGS_MODULE"] = "settings"

    def migrate(self) -> None:
        self.run("manage.py", "makemigrations", "shop")
        self.run("manage.py", "migrate")

    def python(self, code: str) -> str:
        return self.run("-c", SETUP + code)

    def pay(self, *orders: str) -> None:
        self.python(f"from shop.services import pay\nfor order in {orders!r}:\n    pay(order)")

    def handled(self) -> str:
        return self.run("manage.py", "runhandlers", "--once")

    def invoices(self) -> Counter[str]:
        return Counter(self.python(INVOICES).split())


@pytest.mark.scenario
@pytest.mark.timeout(400)
def test_each_change_is_handled_once(tmp_path: Path, database_url: str) -> None:
    url = f"{database_url}?options=-csearch_path%3Doutbox"
    with made_schema("outbox"):
        old = Version(tmp_path / "old", url, None, models="before", services="before", poller="before")
        old.migrate()
        old.pay("old-1", "old-2", "old-3")
        both = Version(tmp_path / "both", url, old, models="1", services="2", poller="before", handlers="3")
        both.migrate()
        both.pay("two-1")
        old.pay("two-2")  # without a fact
        old.python("from shop.poller import poll; poll()")
        both.pay("two-3")

        poller = both.start("-c", SETUP + POLL_ON)
        with poller:
            assert poller.stdout is not None
            assert poller.stdout.readline() == "polling\n"
            both.handled()
            assert poller.wait(2 * DEADLINE_SECONDS) == 0
        both.handled()
        assert both.python("from shop.poller import poll; print(poll())") == "0\n"

        assert both.python(f"{BLOCKS['history']}\nprint(take_over(3), take_over(), take_over())") == "3 1 0\n"
        only = Version(tmp_path / "only", url, both, models="1", services="5", handlers="3")
        both.pay("last-1")
        only.pay("last-2")
        assert "6 facts handled" in only.handled()  # four of them, which were taken over, are skipped

        end = Version(tmp_path / "end", url, only, models="6", services="5", handlers="6")
        end.pay("end-1")
        end.handled()
        end.migrate()
        end.pay("end-2")
        end.handled()
        expected = ["old-1", "old-2", "old-3", "two-1", "two-2", "two-3", "last-1", "last-2", "end-1", "end-2"]
        assert end.invoices() == Counter([*expected, *(f"both-{number}" for number in range(60))])


def test_a_reader_by_number_skips_what_the_consumer_has_had(tmp_path: Path, database_url: str) -> None:
    url = f"{database_url}?options=-csearch_path%3Doutbox_numbers"
    with made_schema("outbox_numbers"):
        shop = Version(tmp_path, url, None, models="1", services="2", handlers="by number")
        handlers = tmp_path / "shop" / "handlers.py"
        handlers.write_text(handlers.read_text().replace("LAST = 4711", "LAST = 2"))
        shop.migrate()
        shop.pay("a", "b", "c")
        assert re.findall(r"^\w$", shop.handled(), re.M) == ["c"]
