"""The page about talking in rooms: its blocks run one after the other, and say what the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from events.models import Event, Room
from streams.testing import forget_writers

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "talk-in-a-room.md"


@pytest.fixture
def _writers_let_go(db: None) -> Iterator[None]:
    yield
    forget_writers()


@pytest.mark.usefixtures("_writers_let_go")
def test_blocks_run_and_say_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for language, block in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.S):
        if language == "python":
            exec(compile(block, str(PAGE), "exec"), names)
        else:
            said = capsys.readouterr().out.splitlines()[-1]
            assert re.fullmatch(re.escape(block.strip()).replace("…", ".+"), said)
    assert Room.objects.count() == 3
    assert Event.objects.filter(sender="@ann:site", type="m.room.message").count() == 1 + 100 + 1
