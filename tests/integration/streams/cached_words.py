"""A cached function for tests in several processes; run as a program, it answers lines on stdin.

``get KEY`` prints the value, ``set KEY VALUE`` changes it and invalidates, ``raise KEY`` counts it up, ``wait TOKEN KEY`` waits
for the stream ``caches`` and prints the value, ``counts`` prints hits and misses.
"""

from __future__ import annotations

import sys

from django.db import connection, transaction

from streams import registry
from tests.support.cached import cached
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.writing import session

TABLE = "CREATE TABLE IF NOT EXISTS cached_words (key text PRIMARY KEY, value text)"


@cached("cached_words")
def word(key: str) -> str | None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT value FROM cached_words WHERE key = %s", [key])
        row = cursor.fetchone()
        return row[0] if row else None


def store_quietly(key: str, value: str) -> None:
    """Change the word, and invalidate nothing."""
    with session() as cursor:
        cursor.execute(
            "INSERT INTO cached_words VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [key, value],
        )


def set_word(key: str, value: str) -> int:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO cached_words VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [key, value],
        )
        return word.invalidate(key)


def raise_word(key: str) -> tuple[int, str]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE cached_words SET value = value::int + 1 WHERE key = %s RETURNING value", [key])
        version = cursor.fetchone()[0]
        return word.invalidate(key), version


def main() -> None:
    for line in sys.stdin:
        match line.split():
            case ["get", key]:
                answer = str(word(key))
            case ["set", key, value]:
                answer = str(set_word(key, value))
            case ["raise", key]:
                answer = " ".join(map(str, raise_word(key)))
            case ["wait", token, key]:
                registry.get("caches").wait_for(int(token), DEADLINE_SECONDS)
                answer = str(word(key))
            case ["counts"]:
                answer = f"{word.hits} {word.misses}"
            case _:
                answer = "?"
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
