"""The base class of all admin pages of the project: read-only, and without counting large tables.

It uses django-unfold's theme if that is installed, else plain Django's. Other projects can therefore install these apps.
Ordering, search and filters of a subclass must use an index, because its table may hold 10^9 rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR
from django.core.paginator import Paginator
from django.db import connections, models
from django.http import HttpRequest
from django.utils.functional import cached_property

from streams.runtime.text import visible

__all__ = ["EstimatedPaginator", "ReadOnlyAdmin", "VisibleText"]

#: The suffixes that Django's list filters append to the name of a column or a foreign key.
_LOOKUPS_OF_FILTERS = ("", "__exact", "__isnull", "__id__exact")
#: The most characters of a search term. Each word of the term becomes a condition on each searched field.
_LONGEST_SEARCH = 300

if TYPE_CHECKING:
    from django.db.models import QuerySet

    _Base = admin.ModelAdmin[Any]
elif apps.is_installed("unfold"):
    from unfold.admin import ModelAdmin as _Base
else:
    _Base = admin.ModelAdmin


class EstimatedPaginator(Paginator):
    """A paginator that counts up to `exact_upto` rows. For a larger table without filters it uses PostgreSQL's estimate."""

    exact_upto = 10_000
    most_pages = 1_000

    @cached_property
    def num_pages(self) -> int:
        """Returns the number of pages, at most ``most_pages``.

        To show a page, PostgreSQL has to read all rows before it.
        """
        return min(super().num_pages, self.most_pages)

    @cached_property
    def count(self) -> int:
        """Returns the number of rows, which is exact up to `exact_upto`.

        For more rows, returns PostgreSQL's estimate if there is no filter, and ``exact_upto + 1`` if there is one.
        """
        found = cast("QuerySet[Any]", self.object_list)
        # The slice bounds the count: PostgreSQL stops after one row more than the limit.
        rows = found.order_by()[: self.exact_upto + 1].count()
        if rows <= self.exact_upto or found.query.where:
            return rows
        with connections[found.db].cursor() as cursor:
            table = found.model._meta.db_table
            cursor.execute("SELECT reltuples::bigint FROM pg_class WHERE oid = %s::regclass", [table])
            return max(rows, int(cursor.fetchone()[0]))


class VisibleText(str):
    """A text for display: ``str()`` of it escapes control characters. Links and queries use the original characters."""

    __slots__ = ()

    def __str__(self) -> str:
        return visible(self)


def _make_visible(row: Any) -> Any:
    """Escapes control characters in the texts of a row and of its loaded related rows. Returns the row.

    The row must not be saved afterwards.
    """
    for field in row._meta.concrete_fields:
        value = row.__dict__.get(field.attname)
        if isinstance(value, str):
            if not value.isprintable():
                setattr(row, field.attname, VisibleText(value))
        elif isinstance(value, dict | list):
            setattr(row, field.attname, _visible_json(value))
    for other in row._state.fields_cache.values():
        if isinstance(other, models.Model):
            _make_visible(other)
    return row


def _visible_json(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isprintable() else visible(value)
    if isinstance(value, dict):
        return {_visible_json(name): _visible_json(inner) for name, inner in value.items()}
    return [_visible_json(inner) for inner in value] if isinstance(value, list) else value


class ReadOnlyAdmin(_Base):
    """The read-only admin of one model: staff with the view permission see its rows, and no one can change them."""

    paginator = EstimatedPaginator
    show_full_result_count = False
    list_per_page = 50
    actions = None
    sortable_by = ()
    show_facets = admin.ShowFacets.NEVER

    def get_list_display(self, request: HttpRequest) -> Any:
        """Returns the columns that the subclass names. If it names none, returns all columns except binary ones."""
        if tuple(self.list_display) != ("__str__",):
            return self.list_display
        return [f.name for f in self.model._meta.concrete_fields if not isinstance(f, models.BinaryField)]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Returns a list class that escapes control characters, because most texts come from untrusted clients."""
        base: Any = super().get_changelist(request, **kwargs)

        class VisibleList(base):
            result_list: Any

            def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
                # ``sortable_by`` only hides the links. Without this line, a request could sort a whole table by any
                # column.
                self.params.pop(ORDER_VAR, None)
                return super().get_ordering(request, queryset)

            def get_results(self, request: HttpRequest) -> None:
                try:
                    super().get_results(request)
                    self.result_list = [_make_visible(row) for row in self.result_list]
                except ValueError as error:  # the database refuses the value, such as a text with NUL
                    raise IncorrectLookupParameters from error

        return VisibleList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Returns true for the lookups of the list's own filters.

        Django would allow all lookups on the table's own columns, even one that reads the whole table or that the
        database refuses.
        """
        names = self.list_filter if request is None else self.get_list_filter(request)
        return lookup in {f"{name}{end}" for name in names for end in _LOOKUPS_OF_FILTERS}

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> Any:
        """Returns the rows that match the search term.

        A longer term than ``_LONGEST_SEARCH`` matches none: no searched text is so long.
        """
        if len(search_term) > _LONGEST_SEARCH:
            return queryset.none(), False
        return super().get_search_results(request, queryset, search_term)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Returns the row with control characters escaped, or null if there is no such row."""
        found = super().get_object(request, object_id, from_field)
        return found if found is None else _make_visible(found)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
