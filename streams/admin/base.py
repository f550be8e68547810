"""The base class of all admin pages of the project: read-only, and without counting large tables.

The pages use the theme of django-unfold if that package is installed, else Django's own. Other projects can therefore
install these apps. Ordering, search and filters of a subclass must use an index, because its table may hold 10^9 rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from html import unescape
from typing import TYPE_CHECKING, Any, ClassVar, cast

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import label_for_field, lookup_field
from django.contrib.admin.views.main import ORDER_VAR
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.paginator import Paginator
from django.db import DataError, connections, models, router
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.functional import cached_property
from django.utils.html import strip_tags
from django.utils.safestring import SafeString

from streams.db.consistent_read import limited_waits
from streams.db.readable import instances
from streams.runtime.any_text import of_any_text
from streams.runtime.csv_text import csv_text
from streams.runtime.text import safe_text

#: The suffixes that Django's list filters append to the name of a column or a foreign key.
_LOOKUPS_OF_FILTERS = ("", "__exact", "__isnull", "__id__exact")
#: The most rows of a list that are served as CSV.
MOST_CSV_ROWS = 10_000
_FORMAT = "format"
#: The most characters of a search term. Each word of the term becomes a condition on each searched field.
_LONGEST_SEARCH = 300

if TYPE_CHECKING:
    from django.db.models import QuerySet

    _Base = admin.ModelAdmin[Any]
elif apps.is_installed("unfold"):
    from unfold.admin import ModelAdmin as _Base
else:
    _Base = admin.ModelAdmin


class RoughCount(int):
    """A number of rows that is not exact. Pages show its ``text``, and the paginator computes with its integer value."""

    text: str

    def __new__(cls, number: int, text: str) -> RoughCount:
        """Returns an integer equal to ``number`` that pages show as ``text``."""
        made = super().__new__(cls, number)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text


class EstimatedPaginator(Paginator):  # type: ignore[type-arg]  # generic in its stubs only
    """A paginator that counts rows up to `exact_upto`. For a larger table without filters it uses PostgreSQL's estimate."""

    exact_upto = 10_000
    most_pages = 1_000

    @cached_property
    def num_pages(self) -> int:
        """Returns the number of pages, at most ``most_pages``.

        The bound is needed because PostgreSQL reads all earlier rows to show one page.
        """
        return min(super().num_pages, self.most_pages)

    @cached_property
    def count(self) -> int:
        """Returns the number of rows, which is exact up to `exact_upto`.

        For more rows, returns PostgreSQL's estimate if the list has no filter, and ``exact_upto + 1`` if it has a
        filter. Both numbers are a `RoughCount`, so that the page does not show them as exact.
        """
        found = cast("QuerySet[Any]", self.object_list)
        # The slice bounds the count: PostgreSQL stops after one row more than the limit.
        rows = found.order_by()[: self.exact_upto + 1].count()
        if rows <= self.exact_upto:
            return rows
        if found.query.where:
            return RoughCount(rows, f"more than {self.exact_upto:,}")
        with connections[found.db].cursor() as cursor:
            table = connections[found.db].ops.quote_name(found.model._meta.db_table)
            cursor.execute("SELECT reltuples::bigint FROM pg_class WHERE oid = %s::regclass", [table])
            estimate = max(rows, int(cursor.fetchone()[0]))
            return RoughCount(estimate, f"about {estimate:,}")


class VisibleText(str):
    """A text for display: ``str()`` of it escapes control characters. Links and queries use the original characters."""

    __slots__ = ()

    def __str__(self) -> str:
        return safe_text(self, None, keep="\n\t")


def _make_visible(row: Any, magnitudes: tuple[str, ...] = (), came_from: Any = None) -> Any:
    """Escapes control characters in the texts of a row and of its loaded related rows. Returns the row.

    Integers in the columns ``magnitudes`` lose their sign. The caller must not save the row afterwards. ``came_from``
    is the row whose relation led to ``row``, and is not escaped again. Otherwise the two rows of a one-to-one relation
    would be escaped in turn without end.
    """
    for name in magnitudes:
        if isinstance(value := getattr(row, name), int):
            setattr(row, name, abs(value))
    for field in row._meta.concrete_fields:
        value = row.__dict__.get(field.attname)
        if isinstance(value, str):
            if not value.isprintable():
                setattr(row, field.attname, VisibleText(value))
        elif isinstance(value, dict | list):
            setattr(row, field.attname, _visible_json(value))
    for other in row._state.fields_cache.values():
        if isinstance(other, models.Model) and other is not came_from:
            _make_visible(other, came_from=row)
    return row


def _visible_json(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isprintable() else safe_text(value, None, keep="\n\t")
    if isinstance(value, dict):
        return {_visible_json(name): _visible_json(inner) for name, inner in value.items()}
    return [_visible_json(inner) for inner in value] if isinstance(value, list) else value


def _plain(name: str, row: Any, page: Any) -> Any:
    _, _, value = lookup_field(name, row, page)
    return unescape(strip_tags(value)) if isinstance(value, SafeString) else value


class ReadOnlyAdmin(_Base):
    """The read-only admin of one model: staff with the view permission see its rows, and no one can change them."""

    paginator = EstimatedPaginator
    show_full_result_count = False
    list_per_page = 50
    actions = None
    sortable_by: ClassVar[Any] = ()
    magnitudes: tuple[str, ...] = ()
    """Columns with IDs of streams. Streams such as ``backfill`` count downwards; pages show tokens, which are positive."""
    show_facets = admin.ShowFacets.NEVER

    def get_urls(self) -> list[URLPattern]:
        """Returns the addresses of the model's pages. Keys of rows may have any characters, because others choose many."""
        return of_any_text(super().get_urls())

    def get_list_display(self, request: HttpRequest) -> Any:
        """Returns the columns that the subclass names. If it names no columns, returns all columns except binary columns."""
        if tuple(self.list_display) != ("__str__",):
            return self.list_display
        return [f.name for f in self.model._meta.concrete_fields if not isinstance(f, models.BinaryField)]

    def ready(self, rows: Iterable[Any]) -> list[Any]:
        """Returns the rows of a list page or CSV file, made safe for display. The caller must not save these rows."""
        return [_make_visible(row, self.magnitudes) for row in rows]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Returns a list class that escapes control characters, because most texts come from untrusted clients."""
        base: Any = super().get_changelist(request, **kwargs)
        ready = self.ready

        class VisibleList(base):
            result_list: Any

            def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
                # ``sortable_by`` only hides the links. Without these lines, a request could sort a whole table by any
                # column. A list with ``sortable_by`` has an index for every column that names an order.
                if not self.sortable_by:
                    self.params.pop(ORDER_VAR, None)
                return super().get_ordering(request, queryset)

            def get_results(self, request: HttpRequest) -> None:
                try:
                    super().get_results(request)
                    self.result_list = ready(instances(self.result_list))
                except ValueError as error:  # the database refuses the value, such as a text with NUL
                    raise IncorrectLookupParameters from error

        return VisibleList

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Serves the list page. With ``?format=csv``, serves the list's first rows as CSV, with the same filters and search."""
        with limited_waits(router.db_for_read(self.model)):
            return self._list_or_csv(request, extra_context)

    def changeform_view(self, *arguments: Any, **more: Any) -> Any:
        """Serves the page of one row."""
        with limited_waits(router.db_for_read(self.model)):
            return super().changeform_view(*arguments, **more)

    def _list_or_csv(self, request: HttpRequest, extra_context: dict[str, Any] | None) -> Any:
        if request.GET.get(_FORMAT) != "csv":
            return super().changelist_view(request, extra_context)
        if not self.has_view_permission(request):
            raise PermissionDenied
        asked = request.GET.copy()
        del asked[_FORMAT]
        request.GET = asked  # type: ignore[assignment]  # Django's list refuses parameters that it does not know
        try:
            names = self.get_list_display(request)
            rows = instances(self.get_changelist_instance(request).get_queryset(request)[:MOST_CSV_ROWS])
        except (IncorrectLookupParameters, ValueError) as error:
            raise Http404("There are no such rows.") from error
        values = ([_plain(name, row, self) for name in names] for row in self.ready(rows))
        titles = [str(label_for_field(name, self.model, self)) for name in names]
        response = HttpResponse(csv_text(titles, values), content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="{self.model._meta.db_table}.csv"'
        return response

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Returns true if a filter of the list page uses the lookup.

        Django alone would allow every lookup on the table's own columns. Some of these lookups read the whole table,
        and the database refuses others.
        """
        found = self.list_filter if request is None else self.get_list_filter(request)
        names = [getattr(name, "parameter_name", name) for name in found]
        return lookup in {f"{name}{end}" for name in names for end in _LOOKUPS_OF_FILTERS}

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> Any:
        """Returns (rows that match the search term, true if rows may occur twice), as Django expects it.

        If the term is longer than ``_LONGEST_SEARCH``, returns no rows, because no searched column has so long a text.
        """
        if len(search_term) > _LONGEST_SEARCH:
            return queryset.none(), False
        return super().get_search_results(request, queryset, search_term)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Returns the row with control characters escaped, or None if there is no such row."""
        found = None
        with suppress(
            DataError
        ):  # psycopg 3's error for a value that cannot be read; of psycopg2's Django says "no such row"
            found = super().get_object(request, object_id, from_field)
        found = found or self._with_nulls(request, object_id)
        return found if found is None else _make_visible(found, self.magnitudes)

    def _with_nulls(self, request: HttpRequest, object_id: str) -> Any:
        """Returns a row that Django takes for missing, because a value of it cannot be read. Returns None if there is none."""
        try:
            return next(iter(instances(self.get_queryset(request).filter(pk=object_id))), None)
        except (ValueError, ValidationError, DataError):  # the ID of no row
            return None

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
