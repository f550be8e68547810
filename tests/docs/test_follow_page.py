"""The page on following from another service, followed to the letter in the tutorial's project; and what its reference names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from streams import follow
from streams.follow import Handler
from tests.support.own_project import made_schema
from tests.support.session import PROJECT, python_path
from tests.support.shop import AFTER, BEFORE
from tests.support.waiting import DEADLINE_SECONDS

TUTORIAL = (PROJECT / "docs" / "tutorial" / "first-stream.md").read_text()
PAGE = (PROJECT / "docs" / "how-to" / "follow-from-another-service.md").read_text()
REFERENCE = (PROJECT / "docs" / "reference" / "following.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.S)


class Site:
    """The tutorial's project with the page's app, in a schema of its own."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        settings, models, self.append, *_ = blocks(TUTORIAL, "python")
        invoice, handlers, self.bulk = blocks(PAGE, "python")
        for name in ("shop", "shop/migrations", "billing", "billing/migrations"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "__init__.py").touch()
        (folder / "settings.py").write_text(BEFORE + settings.replace('"shop"]', '"shop", "billing"]') + AFTER)
        (folder / "shop" / "models.py").write_text(models)
        (folder / "billing" / "models.py").write_text(invoice)
        (folder / "billing" / "handlers.py").write_text(handlers)
        self.environment = {
            **os.environ,
            "DATABASE_URL": f"{database_url}?options=-csearch_path%3Dfollowing",
            "PYTHONPATH": python_path(folder, PROJECT),
            "DJANGO_SETTINGS_MODULE": "settings",
        }

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=2 * DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def django(self, *arguments: str) -> str:
        return self.run("-m", "django", *arguments)

    def python(self, script: str) -> str:
        return self.run("-c", f"import django; django.setup()\n{script}")


def test_the_page_works(tmp_path: Path, database_url: str) -> None:
    site = Site(tmp_path, database_url)
    with made_schema("following"):
        site.django("makemigrations", "shop", "billing")
        site.django("migrate")
        site.python(site.append)
        assert "billing: 3 facts handled, 0 parked" in site.django("runhandlers", "billing", "--once")
        invoices = (
            "from billing.models import Invoice; print(sorted(Invoice.objects.values_list('order_id', flat=True)))"
        )
        assert site.python(invoices) == "['4711', '4712']\n"
        bulk = f"{site.bulk}\nhandles(Order, reader='bulk', begin=Begin.OLDEST)(write_invoices)\n"
        handlers = tmp_path / "billing" / "handlers.py"
        handlers.write_text(handlers.read_text() + bulk)
        site.python("from billing.models import Invoice; Invoice.objects.all().delete()")
        assert "bulk: 3 facts handled, 0 parked" in site.django("runhandlers", "bulk", "--once")
        assert site.python(invoices) == "['4711', '4712']\n"
        for block in blocks(PAGE, "sh"):
            for line in block.splitlines():
                python, manage, *arguments = line.split()
                assert (python, manage) == ("python", "manage.py")
                site.django(*arguments)


def test_every_option_of_a_handler_is_in_the_reference() -> None:
    options = {field.name for field in fields(Handler)} - {"stream", "reader", "function"}
    assert options == set(re.findall(r"^\| `([a-z_]+)` \| [^|]+\| ", REFERENCE, re.M)) & options


@pytest.mark.parametrize(
    "name", ["parked_facts", "retry_parked", "drop_parked", "resync_reader", "Reader", "Begin", "View"]
)
def test_the_public_names_are_there_and_named(name: str) -> None:
    assert name in follow.__all__
    assert f"`{name}" in REFERENCE
