"""Identifiers say what a thing is: none of the home-made words of the first years comes back into the packages held here.

Only what a package defines counts (functions, classes, parameters, attributes, locals), not the names of others that it
uses. Prose is free.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import PROJECT

HELD = ("state", "events", "pipeline", "streams", "replsite")
#: Refused anywhere in an identifier, with what to write instead.
WORDS = {
    "admit": "the rule or condition that lets in",
    "anew": "again, or what is recomputed",
    "began": "started",
    "begun": "started, new",
    "gone": "removed, deleted, lost",
    "heard": "received, the position reached",
    "judge": "authorise, event_auth, decide",
    "judged": "authorised",
    "lane": "writer, range, loop",
    "leaf": "forward extremity",
    "look": "read, query, search",
    "looked": "queried",
    "meet": "lower, shared, neighbour",
    "met": "shared, neighbour",
    "nobody": "none",
    "note": "record, add, store",
    "noted": "recorded",
    "said": "stated",
    "sight": "the rule's input",
    "somebody": "a user, a caller",
    "take": "add, reserve, read, remove",
    "taken": "reserved, removed",
    "tell": "notify, send",
    "told": "given, stated, proven, sent",
    "took": "added, reserved",
    "turned": "reversed",
    "whoever": "the caller, a client",
}
#: Refused as a whole identifier: in a longer one these words have a meaning.
ALONE = {
    "begin": "start, reset",
    "here": "present, arrived, known",
    "memory": "cache",
    "one": "what it is one of",
    "own": "whose, or of what",
    "peer": "client",
    "what": "kind, problem, name",
}
#: Words of the contract: columns, JSON keys and public names that others use.
CONTRACT = {
    "Begin": "where a handler begins (docs/reference/following.md)",
    "GONE": "a status word (docs/reference/status-words.md)",
    "LOOK": "a status word, as `GONE`",
    "LOOK_WHERE_POSSIBLE": "the SQL of a look (docs/explanation/proof.md)",
    "NOTE": "a severity that the API and the live page show",
    "_LOOK": "the SQL of a look (docs/explanation/proof.md)",
    "PortTaken": "an error (docs/reference/errors.md)",
    "PositionsTaken": "an error that archives raise",
    "ReaderNameTaken": "an error (docs/reference/errors.md)",
    "began_at": "a column of events_purgedroom",
    "begin": "the option of a handler, as `Begin`",
    "end_looks": "of a look (docs/explanation/proof.md)",
    "gone": "what a sync answer removes (docs/reference/sync.md)",
    "here": "a key of the summary of a restore",
    "look": "events.notifier.notifier.look (docs/explanation/notifier.md)",
    "look_now": "a look (docs/explanation/proof.md)",
    "retry_began_at": "a column of streams_storedcursor",
}


def words_of(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def defined(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.alias) and node.asname is not None:
            yield node.asname, node.lineno


def refused(name: str) -> str | None:
    bare = name.strip("_").lower()
    if name in CONTRACT:
        return None
    if bare in ALONE:
        return f"{bare}: {ALONE[bare]}"
    forms = (form for word in words_of(name) for form in (word, word.removesuffix("s")))
    return next((f"{form}: {WORDS[form]}" for form in forms if form in WORDS), None)


def modules(package: str) -> list[Path]:
    return sorted((PROJECT / package).rglob("*.py"))


@pytest.mark.parametrize("package", HELD)
def test_identifiers_have_no_home_made_words(package):
    found = [
        f"{path.relative_to(PROJECT)}:{line} {name} ({why})"
        for path in modules(package)
        for name, line in defined(ast.parse(path.read_text()))
        if (why := refused(name)) is not None
    ]
    assert found == [], "\n".join(found)


def test_what_the_contract_keeps_is_used():
    names = {name for package in HELD for path in modules(package) for name, _ in defined(ast.parse(path.read_text()))}
    assert CONTRACT.keys() <= names


@pytest.mark.parametrize("name", ["_told", "takeAll", "own", "_note_change", "lanes"])
def test_a_word_is_found_in_any_form_of_name(name):
    assert refused(name) is not None


@pytest.mark.parametrize("name", ["owner", "own_columns", "_line", "notification"])
def test_only_whole_words_count(name):
    assert refused(name) is None
