"""Renders the live page as fragments of HTML, once per page for all viewers with the same rights.

A table is ``[(group key, [(row key, row), …]), …]``. The page as it is loaded and the answers to the browser's questions
(``shared_answers``) are made of the same rows, so they cannot disagree. A fragment has moments, and the browser computes
their ages. So a fragment changes when something happens, and not merely because time passes. Without JavaScript, the page
shows the ages at the time of loading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import groupby
from typing import Any
from urllib.parse import quote

from django.urls import reverse

from replsite import installed_apps
from replsite.dashboard.action_links import LINKS, action_addresses
from replsite.dashboard.page import TABLES, Page
from replsite.dashboard.words_page import word_addresses
from replsite.live_rows.cells import NOTHING, Cell, Group, Row, Tile
from streams.runtime.amounts import duration
from streams.runtime.text import safe_text

Table = list[tuple[str, list[tuple[str, str]]]]
"""Groups in order, each with its key and its rows. The rows are in order, each with its key."""

#: Status words that need no sentence beside them, if the severity is fine.
_WORDS_THAT_SAY_ALL = ("writing", "idle", "current", "retired")
_QUIET_WORDS = ("idle", "retired", "gone", "done", "")
_PICTURE_HEIGHT = 32


#: App and model of the objects that rows are about, by table. Viewers who may view them get links to their pages.
_OBJECTS = {
    "streams": ("streams", "streamposition"),
    "readers": ("streams", "reader"),
    "jobs": ("pipeline", "job"),
    "rooms": ("events", "room"),
}
#: The kind of status words in each table (``replsite.status.words``).
_KINDS = {"streams": "writer", "readers": "reader", "jobs": "job"}
SEE_ROOMS = "events.view_room"
_RIGHTS = tuple(dict.fromkeys(
    (SEE_ROOMS, *(f"{app}.view_{model}" for app, model in _OBJECTS.values()), *(link.permission for link in LINKS.values()))
))  # fmt: skip
#: Tables of the page by the app that fills them.
_TABLES_OF = {"jobs": "pipeline", "rooms": "events", "workers": "streams.catalog"}


def rights_of(user: Any) -> frozenset[str]:
    """Returns the permissions of a user that decide what the page shows. Queries the database."""
    return frozenset(right for right in _RIGHTS if installed_apps.has(right.partition(".")[0]) and user.has_perm(right))


def tables_of_site() -> list[str]:
    """Returns the names of the tables on this site's page. Tables of apps that are not installed are left out."""
    return [name for name in TABLES if name not in _TABLES_OF or installed_apps.has(_TABLES_OF[name])]


@dataclass(frozen=True, slots=True)
class Fragments:
    """A page as HTML for viewers with the same rights, with the times at which its figures were read."""

    as_of: str
    storage_at: str
    state: str
    summary: str
    tables: dict[str, Table]


def render(
    page: Page, rights: frozenset[str], now: datetime | None = None, last: tuple[Page, Fragments] | None = None
) -> Fragments:
    """Returns the parts of the page that viewers with these rights may see, as HTML.

    If ``now`` is given, the HTML also contains the ages at that moment, for browsers without JavaScript. ``last`` is (an
    earlier page, its HTML for the same rights and without ages). The HTML of unchanged groups is taken from ``last``.
    """
    tables = {name: page[name] for name in tables_of_site()}  # type: ignore[literal-required]
    if "rooms" in tables and SEE_ROOMS not in rights:
        # Emptied, not left out. So the rooms vanish from an open page when the viewer loses the permission.
        tables["rooms"] = []
    links = {
        name: reverse(f"admin:{app}_{model}_change", args=["~"])
        for name, (app, model) in _OBJECTS.items()
        if f"{app}.view_{model}" in rights
    }
    actions, words = action_addresses(rights), word_addresses()
    return Fragments(
        page["as_of"],
        page["storage_at"],
        _state(page["health"], actions, words),
        _summary(page["summary"], now),
        {
            name: _table(name, groups, _Links(links.get(name, ""), actions, words), now, last)
            for name, groups in tables.items()
        },
    )


def _table(
    name: str, groups: Sequence[Group], links: _Links, now: datetime | None, last: tuple[Page, Fragments] | None
) -> Table:
    old = last[0][name] if last is not None and name in last[1].tables else ()  # type: ignore[literal-required]
    html = last[1].tables[name] if old and last is not None else ()
    known = {group["key"]: (group, done) for group, done in zip(old, html, strict=False)}
    found = []
    for group in groups:
        was, done = known.get(group["key"], (None, None))
        found.append(done if done is not None and was == group else _group(name, group, links, now))
    return found


@dataclass(frozen=True, slots=True)
class _Links:
    """The addresses of the links in a table's rows, for viewers with the same rights. ``~`` stands for a key or name."""

    page: str
    """The address of the row's object. Empty if the viewers may not see it."""
    actions: Mapping[str, str]
    words: Mapping[tuple[str, str], str]
    """The addresses of the explanations of status words, by (kind, word)."""


def _state(health: dict[str, Any], actions: Mapping[str, str], words: Mapping[tuple[str, str], str]) -> str:
    first, effects = health["first"], _effects(health["first"])
    problems = "".join(f"<li>{_problem(p, actions)}{_effects(p)}</li>" for p in health["problems"])
    return (
        f'<div id="live-state" data-word="{health["word"]}" data-said="{_shown(health["said"])}"><p class="live-health-line">'
        f'<strong id="live-health-word"><a href="{words["site", health["word"]]}">{health["word"]}</a></strong> '
        f'<span id="live-health-sentence">{_problem(first, actions)}</span></p>{effects}'
        f'<ul id="live-problems"{"" if problems else " hidden"}>{problems}</ul></div>'
    )


def _problem(problem: dict[str, Any], actions: Mapping[str, str]) -> str:
    buttons = _buttons(problem.get("actions", ()), problem.get("about", ""), actions)
    return _sentence(problem["text"], problem.get("command", "")) + buttons


def _effects(problem: dict[str, Any]) -> str:
    effects = "".join(f"<li>{_shown(text)}</li>" for text in problem.get("effects", ()))
    return f'<ul class="live-effects" aria-label="What it causes">{effects}</ul>' if effects else ""


def _buttons(names: Sequence[str], about: str, actions: Mapping[str, str]) -> str:
    return "".join(
        f'<a class="live-act" href="{escape(actions[name].replace("~", quote(about, safe="")))}" '
        f'aria-label="{LINKS[name].text} … {escape(safe_text(about))}">{LINKS[name].text} …</a>'
        for name in names
        if about and name in actions
    )


def _summary(tiles: Sequence[Tile], now: datetime | None) -> str:
    figures = "".join(
        f'<div data-severity="{tile["severity"]}"><dt>{escape(tile["title"])}</dt><dd>{_inside(tile["cell"], now)}</dd></div>'
        for tile in tiles
    )
    return f'<dl class="live-tiles" id="live-summary" aria-label="The whole at a glance">{figures}</dl>'


def _group(name: str, group: Group, links: _Links, now: datetime | None) -> tuple[str, list[tuple[str, str]]]:
    head = _row(name, group["head"], links, now, head_of=group)
    return group["key"], [("", head), *((row["key"], _row(name, row, links, now)) for row in group["rows"])]


def _row(name: str, row: Row, links: _Links, now: datetime | None, *, head_of: Group | None = None) -> str:
    table = TABLES[name]
    who, word, *figures, why = row["cells"]
    is_fine = row["severity"] == "fine"
    tag = f'<tr data-key="{escape(row["key"])}" data-severity="{row["severity"]}"'
    tag += ' class="live-head"' * (head_of is not None)
    tag += f' data-id="{escape(row["id"])}"' if "id" in row else ""
    tag += " data-quiet" * (table.has_words and is_fine and word["text"] in _QUIET_WORDS)
    sentence = _sentence(why["text"], row.get("command", ""))
    sentence += _buttons(row.get("actions", ()), row.get("about", ""), links.actions)
    name_cell = _inside(who, now, links.page.replace("~", quote(row["id"], safe="!")) if "id" in row else "")
    label, has_lines = _shown(who["text"]), head_of is not None and bool(head_of["rows"])
    toggle = f'<button type="button" class="live-toggle" aria-expanded="true" aria-label="Lines of {label}"></button>'
    cells = [f'<th scope="row">{toggle * has_lines}{name_cell}{"" if table.has_words else sentence}</th>']
    if table.has_words:
        why_here = "" if is_fine and word["text"] in _WORDS_THAT_SAY_ALL else sentence
        cells.append(f'<td class="live-status">{_word(name, word["text"], links.words)}{why_here}</td>')
    for column, cell in zip(table.columns[2:], figures, strict=False):
        number = ' class="live-number"' * column.number
        cells.append(f'<td{number} data-label="{column.title}">{_inside(cell, now)}</td>')
    if table.has_menu:
        # The key of the group that stands for the readers that were left out begins with a line break.
        is_one = head_of is None or not head_of["key"].startswith("\n")
        more = (
            f'<button type="button" class="live-more" aria-haspopup="true" aria-label="More about {label}">⋯</button>'
        )
        cells.append(f'<td class="live-more-cell">{more * is_one}</td>')
    return f"{tag}>{''.join(cells)}"


def _word(name: str, word: str, words: Mapping[tuple[str, str], str]) -> str:
    if (address := words.get((_KINDS.get(name, ""), word))) is None:
        return f'<span class="live-text">{word}</span>'
    return f'<a class="live-text" href="{address}">{word}</a>'


def _inside(cell: Cell, now: datetime | None, link: str = "") -> str:
    text, about = _shown(cell["text"]), ""
    if "at" in cell:
        text, about = f"{_age(cell['at'], now)} ago" if now else "", f' data-at="{cell["at"]}"'
    elif cell["text"] == NOTHING:
        about = " data-nothing"
    tag, about = ("a", f'{about} href="{escape(link)}"') if link else ("span", about)
    found = f'<{tag} class="live-text"{about}>{text}</{tag}>'
    sub = [_shown(cell["sub"])] if cell.get("sub") else []
    if "since" in cell:
        since = f"for {_age(cell['since'], now)}" if now else ""
        sub.append(f'<span data-since="{cell["since"]}">{since}</span>')
    if sub:
        found += f'<span class="live-sub">{" · ".join(sub)}</span>'
    if "series" in cell:
        found += _picture(cell["series"])
    if "share" in cell:
        found += f'<svg class="live-share" aria-hidden="true"><rect width="{cell["share"]:.0%}" height="100%"/></svg>'
    return found


def _age(moment: str, now: datetime) -> str:
    return duration((now - datetime.fromisoformat(moment)).total_seconds())


def _picture(series: Sequence[float | None]) -> str:
    # Screen readers skip the picture: the number beside it says the same.
    highest = max(1e-9, *(value or 0.0 for value in series))
    points = [
        (2 * step + 1, value is not None, round((1 - (value or 0.0) / highest) * (_PICTURE_HEIGHT - 6)) + 3)
        for step, value in enumerate(series)
    ]
    line = area = ""
    for is_known, run in groupby(points, key=lambda point: point[1]):
        if is_known:
            # A single point gets a short line, because a path of one point draws nothing.
            path = [f"{x} {y}" for x, _, y in run]
            line += f"M{'L'.join(path)}" + "h.1" * (len(path) == 1)
            area += f"M{path[0].split()[0]} {_PICTURE_HEIGHT}L{'L'.join(path)}V{_PICTURE_HEIGHT}Z"
    box = f'viewBox="0 0 {2 * len(series)} {_PICTURE_HEIGHT}" preserveAspectRatio="none"'
    return f'<svg class="live-series" {box} aria-hidden="true"><path d="{area}"/><path d="{line}"/></svg>'


def _sentence(text: str, command: str) -> str:
    if not text:
        return ""
    before, found, after = text.partition(command) if command and command in text else (text, "", "")
    shown = _shown(found)
    copy = f'<code>{shown}</code><button type="button" class="live-copy" aria-label="Copy {shown}">Copy</button>'
    return f'<span class="live-why">{_shown(before)}{copy if found else ""}{_shown(after)}</span>'


def _shown(text: str) -> str:
    """Returns a text as HTML. Names and errors in it come from others, and must not turn the text beside them round."""
    return escape(safe_text(text, None))
