"""The example of the how-to on following with Spark runs, and adds only what is new when it runs again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streams import registry, writers
from streams.database import dsn
from streams.models import CacheInvalidation, Reader

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "follow-with-spark.md"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("spark", "own_writer")
def test_the_example_runs_and_runs_again(tmp_path, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    for expected in ("3 facts so far", "6 facts so far"):
        facts = [CacheInvalidation(cache_name="c", keys=["k"]) for _ in range(3)]
        registry.get("caches").append(*facts)
        assert writers.retire_all()
        exec(compile(example, str(PAGE), "exec"), {"DSN": dsn(), "folder": tmp_path})
        assert expected in capsys.readouterr().out
    assert Reader.objects.filter(name="notebook", kind="spark").exists()
