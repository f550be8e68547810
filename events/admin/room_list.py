"""The list of rooms: sorted by name, members, events or activity, filtered by health and version, and searched.

First only ``RoomSummary`` is read, so that PostgreSQL stops sorting after one page. Then the rooms of this page are
read. Every order has an index. A search for a member reads the index of members. A search for a part of a name, an
alias or a room ID reads the narrow rows of the summaries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Exists, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Lower
from django.http import HttpRequest

from events.admin.room_names import HEALTH
from events.models import BackwardExtremity, CurrentState, RoomSummary
from state.rules.room_versions import ROOM_VERSIONS
from streams.admin.base import EstimatedPaginator

if TYPE_CHECKING:
    _Rooms = QuerySet[RoomSummary]
#: Coarse column with an index -> exact column, by which rows with equal values are sorted.
_EXACT = {"active_on": "active_at", "size": "events"}
_ROOMS_OF_MEMBERS = 10_000
_SHORTEST_MEMBER = 3
_LONGEST_TERM = 300


class RoomPaginator(EstimatedPaginator):
    """Ends after a limited number of pages. To find a room beyond, use another sort order or a search."""

    most_pages = 200


class HealthFilter(admin.SimpleListFilter):
    title = "health"
    parameter_name = "health"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(word, word) for word in HEALTH]

    def queryset(self, request: HttpRequest, queryset: _Rooms) -> _Rooms:
        unknown = Q(room__current_state_unresolved=True) | Q(room__visibility_unresolved=True)
        gaps = Exists(BackwardExtremity.objects.filter(room_id=OuterRef("pk")))
        if self.value() == "unknown":
            return queryset.filter(unknown)
        if self.value() == "gaps":
            return queryset.filter(gaps, ~unknown)
        return queryset.filter(~gaps, ~unknown) if self.value() == "healthy" else queryset


class VersionFilter(admin.SimpleListFilter):
    title = "version"
    parameter_name = "version"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(version, version) for version in ROOM_VERSIONS]

    def queryset(self, request: HttpRequest, queryset: _Rooms) -> _Rooms:
        return queryset.filter(room__room_version=self.value()) if self.value() in ROOM_VERSIONS else queryset


def by_exact_order(ordering: list[Any]) -> list[Any]:
    """Returns the sort columns, with the exact column after each coarse (indexed) column, for equal coarse values."""
    found: list[Any] = []
    for field in ordering:
        found.append(field)
        if isinstance(field, str) and (exact := _EXACT.get(field.removeprefix("-"))) is not None:
            found.append(f"-{exact}" if field.startswith("-") else exact)
    return found


def found_rooms(rooms: _Rooms, term: str) -> _Rooms:
    """Returns the rooms whose name, alias or ID contains the term.

    A term that begins with ``@`` is the beginning of a user ID: the rooms to which such a user is joined or invited.
    """
    term = term.strip()
    if not term:
        return rooms
    if len(term) > _LONGEST_TERM:
        return rooms.none()
    if term.startswith("@"):
        members = CurrentState.objects.using(rooms.db).filter(
            type="m.room.member", state_key__startswith=term, membership__in=("join", "invite")
        )
        if len(term) < _SHORTEST_MEMBER:
            return rooms.none()
        return rooms.filter(room_id__in=members.values("room_id")[:_ROOMS_OF_MEMBERS])
    # A database with the locale C knows the other case of ASCII letters only, so all usual cases are looked for.
    matches = Q()
    for text in sorted({term, term.lower(), term.upper(), term.title()}):
        matches |= Q(words__contains=Lower(Value(text)))
    return rooms.filter(matches)
