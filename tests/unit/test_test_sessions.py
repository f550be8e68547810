"""Queries of tests over what the server's databases share: limited to this test's database, or to one session.

With ``DATABASE_URL`` all workers of pytest use databases of one server. A test that ended sessions by name alone ended those of
other tests, and one that asked whether anybody waits for a lock found who waits elsewhere.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.session import PROJECT

VIEWS = r"pg_(stat_activity|locks|prepared_xacts|stat_database)\b"
SHARED = re.compile(rf"\b(FROM|JOIN)\s+{VIEWS}", re.IGNORECASE)
#: ``database`` of ``pg_locks`` is compared with a database of that name, too.
LIMITED = re.compile(r"current_database\(\)|\bdatname = %s|\bpid = (%s|pg_backend_pid\(\))")


def literals(text: str) -> Iterator[tuple[int, str]]:
    """Every string of a Python text with its line; what is put into an f-string is left out."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in node.values)
            yield node.lineno, "".join(part.value for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def unlimited(text: str) -> list[int]:
    """Lines of the queries that see other databases."""
    if not re.search(VIEWS, text):  # reading all tests would take seconds
        return []
    return [line for line, said in literals(text) if SHARED.search(said) and not LIMITED.search(said)]


def test_the_reading_finds_what_it_looks_for():
    assert unlimited('cursor.execute("SELECT count(*) FROM " "pg_locks WHERE NOT granted")') == [1]
    assert unlimited('x = 1\nf"SELECT 1 FROM pg_stat_activity WHERE application_name = {name}"') == [2]
    assert unlimited('"SELECT 1 FROM pg_stat_activity WHERE pid = %s"') == []
    assert unlimited('"SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"') == []


def test_no_query_of_a_test_sees_sessions_or_locks_of_other_databases():
    found = [
        f"{path.relative_to(PROJECT)}:{line}"
        for path in files()
        for line in unlimited(path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_a_query_is_planned_on_new_tables():
    """What tests before wrote, and when PostgreSQL analyzed it, would choose the plan."""
    asks, makes_new = re.compile(r"\bEXPLAIN\b|\.explain\(\)"), re.compile(r"\b(new_tables|empty_tables)\b")
    found = [
        path for path in files() if asks.search(text := path.read_text(encoding="utf-8")) and not makes_new.search(text)
    ]
    # The first makes its own database, the second asks Spark. What the third counts is planned in its callers' tables.
    assert [path.name for path in found] == ["test_keys.py", "test_work_out_rooms.py", "rows_read.py"]
    callers = [text for path in files() if "pages_read(lambda" in (text := path.read_text(encoding="utf-8"))]
    assert callers and all(makes_new.search(text) for text in callers)


def files() -> list[Path]:
    own_server = PROJECT / "tests" / "torture" / "holds"
    return sorted(
        path
        for path in (PROJECT / "tests").rglob("*.py")
        if path.name != Path(__file__).name and not path.is_relative_to(own_server)
    )
