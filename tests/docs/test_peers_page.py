"""The page that compares tools: its lines are counted, and the code of replsite and of the outbox table runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.session import PROJECT
from tests.support.shop import Shop

PAGE = (PROJECT / "docs" / "explanation" / "peers.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# ([^\n]*)\n(.*?)```", PAGE, re.S))
MODELS = """
from django.db import models

class Basket(models.Model):
    order_id = models.TextField()
    paid = models.BooleanField(default=False)

class Invoice(models.Model):
    order_id = models.TextField(unique=True)

from {module} import *
"""


def test_the_lines_are_counted() -> None:
    lines = {name: sum(1 for line in text.splitlines() if line.strip()) for name, text in BLOCKS.items()}
    said = re.findall(r"^\| ([\w-]+)[^|]* \| (\d+) \|$", PAGE, re.M)
    assert {name: int(number) for name, number in said} == lines
    assert min(lines, key=lambda name: lines[name]) in ("replsite", "procrastinate")
    for text in BLOCKS.values():
        ast.parse(text)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", ["replsite", "outbox"])
def test_the_shop_works(name: str, tmp_path: Path, database_url: str) -> None:
    declared, tested = BLOCKS[name].split("class PayTest")
    files = {"shop/models.py": MODELS.format(module=f"shop.{name}"), f"shop/{name}.py": declared}
    files["shop/handlers.py"] = ""
    files["shop/tests.py"] = f"from shop.{name} import *\nclass PayTest{tested}"
    server = re.sub(r"/[^/]*$", f"/peers_{name}", database_url)
    shop = Shop(tmp_path, server, files)
    shop.run("manage.py", "makemigrations", "shop")
    said = shop.run("manage.py", "test", "--noinput")
    assert "Ran 1 test" in said
    assert "OK" in said
