"""Old page + changes = new page, for pages of every kind."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from replsite.dashboard.diff import TABLES, changes
from replsite.dashboard.page import live_page_data
from tests.support.effort import examples
from tests.support.snapshots import a_reader, a_snapshot, a_stream, a_writer

KEYS = st.text("abc", min_size=1, max_size=1)


def rows(keys):
    return st.lists(
        st.builds(
            lambda key, severity, texts, more: {
                "key": key, "severity": severity, "cells": [{"text": text} for text in texts], **more,
            },
            keys, st.sampled_from(["fine", "wrong"]), st.lists(st.text("xy", max_size=1), min_size=1, max_size=2),
            st.sampled_from([{}, {"command": "x"}, {"command": "y"}]),
        ),
        max_size=3, unique_by=lambda row: row["key"],
    )  # fmt: skip


EMPTY_HEAD = {"key": "", "severity": "note", "cells": []}
GROUPS = st.lists(
    st.builds(
        lambda key, heads, rows: {"key": key, "head": heads[0] if heads else EMPTY_HEAD, "rows": rows},
        KEYS, rows(st.just("")), rows(KEYS),
    ),
    max_size=3, unique_by=lambda group: group["key"],
)  # fmt: skip
FEW = st.sampled_from([[], [{"key": "a", "head": EMPTY_HEAD, "rows": []}]])
PAGES = st.fixed_dictionaries(
    {
        "as_of": st.just("now"),
        "storage_at": st.sampled_from(["", "then"]),
        "health": st.fixed_dictionaries({"word": st.sampled_from(["well", "wrong"])}),
        "summary": st.lists(st.fixed_dictionaries({"title": st.text("xy", max_size=1)}), max_size=2),
        **dict.fromkeys(TABLES, FEW),
        "readers": GROUPS,
    }
)


def apply(page, message):
    """What the browser does with a message."""
    page = dict(page or {name: [] for name in TABLES}) | {
        k: message[k] for k in ("as_of", "storage_at", "health", "summary") if k in message
    }
    for name in TABLES:
        page[name] = apply_table(page[name], message.get(name, {}))
    return page


def apply_table(groups, change):
    known = {group["key"]: group for group in groups}
    for key, new in change.get("groups", {}).items():
        known[key] = apply_group(known.get(key, {"key": key, "rows": []}), new)
    return [known[key] for key in change.get("order", [group["key"] for group in groups])]


def apply_group(group, change):
    lines = {row["key"]: row for row in group["rows"]}
    lines |= {key: apply_row(lines.get(key), row) for key, row in change.get("rows", {}).items()}
    order = change.get("order", [row["key"] for row in group["rows"]])
    head = apply_row(group.get("head"), change["head"]) if "head" in change else group["head"]
    return {"key": group["key"], "head": head, "rows": [lines[key] for key in order]}


def apply_row(row, change):
    if "some" not in change:
        return change
    cells = [change["some"].get(str(number), cell) for number, cell in enumerate(row["cells"])]
    return {**row, **{name: value for name, value in change.items() if name != "some"}, "cells": cells}


@settings(max_examples=examples(50))
@given(PAGES, PAGES)
def test_old_page_and_changes_make_the_new_page(old, new):
    assert apply(old, changes(old, new)) == new


@settings(max_examples=examples(50))
@given(PAGES)
def test_changes_from_nothing_make_the_page(new):
    assert apply(None, changes(None, new)) == new


def test_nothing_but_the_time_is_sent_when_nothing_changed():
    page = live_page_data(a_snapshot(a_stream(a_writer()), a_reader()))
    assert changes(page, live_page_data(a_snapshot(a_stream(a_writer()), a_reader()))) == {"as_of": page["as_of"]}


def test_one_changed_cell_sends_one_row():
    old = live_page_data(a_snapshot(a_stream(a_writer("a"), a_writer("b"))))
    new = live_page_data(a_snapshot(a_stream(a_writer("a"), a_writer("b", position=11))))
    assert list(changes(old, new)["streams"]["groups"]["events"]["rows"]) == ["b"]


def test_of_a_row_that_was_there_only_the_cells_that_differ_are_sent():
    old = live_page_data(a_snapshot(a_stream(a_writer("a"))))
    new = live_page_data(a_snapshot(a_stream(a_writer("a", position=11))))
    assert changes(old, new)["streams"]["groups"]["events"]["rows"] == {"a": {"some": {"2": {"text": "11"}}}}


def test_messages_are_json():
    page = live_page_data(a_snapshot(a_stream(a_writer()), a_reader()))
    assert json.loads(json.dumps(changes(None, page)))["streams"]["order"] == ["events"]
