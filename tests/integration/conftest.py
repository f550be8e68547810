"""After each test this process lets go what would outlive the tables; rooms and processes that many tests talk in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from tests.support.asked_process import AskedProcess, asked_process
from tests.support.letting_go import everything_let_go
from tests.support.room_talker import USERS, Talker, talkers
from tests.support.wire_client import start_replication

if TYPE_CHECKING:
    from events.sending.send import LocalRoom


@pytest.fixture(autouse=True)
def _nothing_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    with everything_let_go(request):
        yield


@pytest.fixture
def port(start_manage: Any) -> int:
    """Of a replication server, in a process of its own."""
    return start_replication(start_manage)


@pytest.fixture
def room(transactional_db: None) -> LocalRoom:
    """A room that the first user of ``tests.support.room_talker`` created."""
    from events.sending.send import create_room
    from tests.support.writing import store_positions

    made = create_room(USERS[0])
    store_positions()  # what made it is no news to whoever begins to wait later
    return made


@pytest.fixture
def other(database_url: str) -> Iterator[Talker]:
    """Another process, the instance ``other``, that talks in rooms."""
    with talkers(database_url, "other") as (talker,):
        yield talker


@pytest.fixture
def words(transactional_db: None) -> Iterator[None]:
    """The table that the cached function of ``tests.integration.streams.cached_words`` reads."""
    from tests.integration.streams import cached_words

    with connection.cursor() as cursor:
        cursor.execute(cached_words.TABLE)
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE cached_words")


@pytest.fixture
def elsewhere(words: None, database_url: str) -> Iterator[AskedProcess]:
    """Another process, the instance ``other``, that has the cached function of ``tests.integration.streams.cached_words``."""
    with asked_process("tests.integration.streams.cached_words", database_url, "other") as process:
        yield process
