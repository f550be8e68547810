"""The page about jobs: its commands print what it says, its example queues, its states are all there are."""

from __future__ import annotations

import json
import re

import pytest

from pipeline.models import Job, JobState
from streams.jobs.view import KILLED
from tests.support.session import PROJECT

PAGE = (PROJECT / "docs" / "how-to" / "run-jobs.md").read_text()


@pytest.mark.django_db(transaction=True)
def test_the_commands_print_what_the_page_says(run_manage):
    console = re.search(r"```console\n(.*?)```", PAGE, re.DOTALL)[1]
    parts = re.split(r"^\$ manage\.py (.*)\n", console, flags=re.MULTILINE)[1:]
    for typed, shown in zip(parts[::2], parts[1::2], strict=True):
        words = re.findall(r'"([^"]+)"|(\S+)', typed.partition("|")[0])
        done = run_manage(*(quoted or plain for quoted, plain in words))
        assert done.returncode == 0, done.stderr
        if "--json" in typed:
            summary = json.loads(done.stdout)["summary"]
            assert summary.keys() == json.loads(shown).keys()
            assert summary["wrong"] == {}
        else:
            same = re.compile(r"job [0-9]+|asked for by .*|in [0-9.]+ s")
            assert same.sub("", done.stdout) == same.sub("", shown)


@pytest.mark.django_db
def test_the_example_queues_a_job():
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], {})
    assert Job.objects.values_list("kind", "arguments", "asked_by").get() == (
        "censor", {"days": 30, "dry_run": False}, "the nightly timer",
    )  # fmt: skip


def test_every_state_is_explained():
    explained = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    assert explained == {*JobState.values, KILLED}
