"""The examples of the how-to on following with Spark run; run again, they add only what is new."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streams import registry
from streams.db.driver import dsn
from streams.models import CacheInvalidation, Reader
from streams.writing import process

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "follow-with-spark.md"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("spark", "own_writer")
def test_the_examples_run_and_run_again(tmp_path, capsys):
    follow, append = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    names = {"DSN": dsn(), "folder": tmp_path}
    for expected in ("3 facts so far", "1006 facts so far"):
        facts = [CacheInvalidation(cache_name="c", keys=["k"]) for _ in range(3)]
        registry.get("caches").append(*facts)
        assert process.retire_all()
        exec(compile(follow, str(PAGE), "exec"), names)
        assert expected in capsys.readouterr().out
        exec(compile(append, str(PAGE), "exec"), names)
    assert CacheInvalidation.objects.count() == 1006
    assert Reader.objects.filter(name="notebook", kind="spark").exists()
