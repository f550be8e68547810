"""The page about testing, followed to the letter: its tests run under Django's runner and pytest, alone and in parallel."""

from __future__ import annotations

import re

import pytest

from tests.support.session import PROJECT
from tests.support.shop import Shop

PAGE = (PROJECT / "docs" / "how-to" / "test-your-streams.md").read_text()


@pytest.fixture(scope="module")
def server_url(django_db_setup: None, django_db_blocker: object) -> str:
    """A URL on the session's server. The shop's test databases are its own."""
    from django.db import connection

    with django_db_blocker.unblock():  # type: ignore[attr-defined]
        connection.ensure_connection()
    where = connection.settings_dict
    return f"postgres://{where['USER']}:{where['PASSWORD']}@{where['HOST']}:{where['PORT']}/{where['NAME']}"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, server_url: str) -> Shop:
    files = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", PAGE, re.S))
    made = Shop(tmp_path_factory.mktemp("tested"), server_url.rpartition("/")[0] + "/tested_shop", files)
    made.run("manage.py", "makemigrations", "shop")
    return made


@pytest.mark.parametrize(
    "options", [[], pytest.param(["--reverse"], marks=pytest.mark.scenario), ["--parallel", "2"]], ids=" ".join
)
def test_djangos_runner(shop: Shop, options: list[str]) -> None:
    said = shop.run("manage.py", "test", "--noinput", *options)
    assert "Ran 8 tests" in said
    assert "OK" in said
    assert "accessed by other users" not in said
    assert "writer.fenced" not in said


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], marks=pytest.mark.scenario),
        ["-n", "2"],
        pytest.param(["--reuse-db"], marks=pytest.mark.scenario),
        ["--reuse-db", "-k", "test_commits or CommittedTest"],
    ],
    ids=" ".join,
)
def test_pytest(shop: Shop, options: list[str]) -> None:
    said = shop.run("-m", "pytest", "-q", *options)
    assert ("4 passed" if "-k" in options else "11 passed") in said
    assert "warning" not in said


def test_handlers_of_production_are_the_same(shop: Shop) -> None:
    found = "import django; django.setup(); from streams.follow.handlers import *; load_handlers(); print(readers())"
    shop.environment["DJANGO_SETTINGS_MODULE"] = "settings"
    assert "'mailer'" in shop.run("-c", found)
