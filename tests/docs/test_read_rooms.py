"""The page about reading rooms: its blocks run one after the other, and say what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from events.notifier import notifier
from streams.testing import forget_writers

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-rooms-from-another-service.md"


@pytest.fixture
def _let_go(transactional_db):
    yield
    notifier.stop_feeds()
    forget_writers()


@pytest.mark.usefixtures("_let_go")
def test_blocks_run_and_say_what_the_page_says(capsys):
    names: dict[str, object] = {}
    for language, block in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.S):
        if language == "python":
            exec(compile(block, str(PAGE), "exec"), names)
        else:
            said = capsys.readouterr().out.strip()
            assert re.fullmatch(re.escape(block.strip()).replace("…", ".+"), said)
