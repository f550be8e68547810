"""The page about the stream object: its examples run and print what it says, and it names every method and error."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from streams import errors
from streams.stream_object import Stream
from streams.waiting.pages import LARGEST_LIMIT, Page
from tests.support.own_project import made_schema
from tests.support.session import PROJECT
from tests.support.shop import Shop

PAGE = (PROJECT / "docs" / "reference" / "streams-in-python.md").read_text()
SET_UP = "import django; django.setup()\n"
ENTRY = """

@stream("accounts", key="account")
class Entry(Fact):
    account = models.TextField()
    amount = models.IntegerField()
"""


def test_examples_print_what_the_page_says(tmp_path: Path, database_url: str) -> None:
    shop = Shop(tmp_path, f"{database_url}?options=-csearch_path%3Din_python", {})
    shop.environment["DJANGO_SETTINGS_MODULE"] = "settings"
    with made_schema("in_python"):
        with (tmp_path / "shop" / "models.py").open("a") as models:
            models.write(ENTRY)
        shop.run("-m", "django", "makemigrations", "shop")
        shop.run("-m", "django", "migrate")
        found = re.findall(r"```python\n# (\w+)\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE, re.S)
        assert [name for name, _, _ in found] == ["read", "keys", "listen", "listen_async"]
        for name, code, said in found:
            shown = shop.run("-c", SET_UP + code)
            assert shown == (said or "4711\n4712\n4711\n4713\n"), name


def test_every_method_is_named() -> None:
    inner = {"fact", "database", "has_named_rows"}
    public = {name for name in vars(Stream) if not name.startswith("_")} - inner
    assert {name for name in public if f"`{name}(" not in PAGE and f"`await {name}(" not in PAGE} == set()
    assert {name for name in inspect.signature(Page).parameters if f"`{name}`" not in PAGE} == set()


def test_errors_and_limits_exist() -> None:
    named = {name for row in re.findall(r"^\| (`[A-Z].*?) \|", PAGE, re.M) for name in re.findall(r"`([A-Z]\w+)`", row)}
    assert named - {"TypeError", "ValueError"} <= set(vars(errors))
    assert f"{LARGEST_LIMIT:,}" in PAGE
