"""The public names of the pipeline are found when they are first used, and need neither Django nor Spark to be loaded.

``load`` alone runs in a process with Django.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import pipeline
from tests.support.session import PROJECT

CODE = """
import sys, pipeline
for name in set(pipeline.__all__) - {"load", "Loaded"}:
    getattr(pipeline, name)
print(sorted({name.partition(".")[0] for name in sys.modules} & {"django", "pyspark", "pyarrow"}))
"""


def test_every_name_is_there_without_django_and_spark():
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=PROJECT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr
    assert set(pipeline.__all__) <= set(dir(pipeline))


def test_another_name_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pipeline.nothing
