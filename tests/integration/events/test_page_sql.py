"""The plan of a page: index ranges only, whatever the values, and nothing hashed over all rooms."""

import re

import pytest
from django.db import connection

from events.reading import page_sql
from tests.support.made_rooms import ALICE, MadeRoom
from tests.support.stored_rooms import store_room

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("new_tables")]


def generic_plan(statement):
    """The plan that the function keeps, with its own settings and a table of few rows told apart by none other."""
    query = statement.split("RETURN QUERY ")[1].split(";\nEND $page$")[0]
    kinds = dict(re.findall(r"p_(\w+) ([a-z]+(?:\[\])?)", statement.split(") RETURNS")[0]))
    numbers = {name: number for number, name in enumerate(kinds, start=1)}
    query = re.sub(r"\bp_(\w+)\b", lambda found: f"${numbers[found[1]]}", query)
    with connection.cursor() as cursor:
        for other_way in ("seqscan", "bitmapscan", "sort"):
            cursor.execute(f"SET LOCAL enable_{other_way} = off")
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute(f"PREPARE page ({', '.join(kinds.values())}) AS {query}")
        cursor.execute(f"EXPLAIN (COSTS OFF) EXECUTE page ({', '.join(['NULL'] * len(kinds))})")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("DEALLOCATE page")
    return plan


@pytest.mark.parametrize(
    "statement, way", [(page_sql.PAGE_BEFORE, "Index Scan Backward"), (page_sql.PAGE_AFTER, "Index Scan")]
)
def test_page_reads_one_range_of_the_timeline_and_one_range_for_each_question(statement, way):
    made = MadeRoom()
    store_room(made.events)
    plan = generic_plan(statement)
    assert re.search(rf"CTE page.*?{way} using events_event_timeline", plan, re.S)
    for index in ("events_eventvisibility_wide", "events_eventvisibility_own"):
        assert f"Index Scan Backward using {index}" in plan
    assert "hashed" not in plan and "Sort" not in plan and "Hash Join" not in plan
    assert "events_event_pkey" not in plan and "Seq Scan on events_event " not in plan


def test_settings_of_the_function_end_with_it():
    made = MadeRoom()
    store_room(made.events)
    with connection.cursor() as cursor:
        cursor.execute(page_sql.FOR_USER[True], {**dict.fromkeys(page_sql._PARAMETERS), **here(made)})
        assert len(cursor.fetchall()) == 2
        cursor.execute("SELECT current_setting('enable_sort'), current_setting('plan_cache_mode')")
        assert cursor.fetchone() == ("on", "auto")


def here(made):
    top = page_sql.LARGEST
    values = {"room": made.room_id, "user_id": ALICE, "topological": top, "stream": top, "base": top, "wanted": 5}
    return values | {"writers": [], "positions": []}
