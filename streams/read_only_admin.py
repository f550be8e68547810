"""The admin base of all rooms: look at everything, change nothing, and never count a huge table.

Looks like the site's theme when django-unfold is installed and like plain Django when not, so that another project can install
the rooms. Ordering, search and filters of a subclass must use an index: the tables behind it may hold 10^9 rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.apps import apps
from django.contrib import admin
from django.core.paginator import Paginator
from django.db import connections, models
from django.http import HttpRequest
from django.utils.functional import cached_property

__all__ = ["EstimatedPaginator", "ReadOnlyAdmin"]

if TYPE_CHECKING:
    from django.db.models import QuerySet

    _Base = admin.ModelAdmin[Any]
elif apps.is_installed("unfold"):
    from unfold.admin import ModelAdmin as _Base
else:
    _Base = admin.ModelAdmin


class EstimatedPaginator(Paginator):
    """Counts up to a limit; a larger table that is shown unfiltered is estimated by PostgreSQL's own statistics."""

    exact_upto = 10_000

    @cached_property
    def count(self) -> int:
        """Number of rows: exact up to the limit."""
        found = cast("QuerySet[Any]", self.object_list)
        rows = found.order_by()[: self.exact_upto + 1].count()
        if rows <= self.exact_upto or found.query.where:
            return rows
        with connections[found.db].cursor() as cursor:
            table = found.model._meta.db_table
            cursor.execute("SELECT reltuples::bigint FROM pg_class WHERE oid = %s::regclass", [table])
            return max(rows, int(cursor.fetchone()[0]))


class ReadOnlyAdmin(_Base):
    """Rows are shown to staff with the view permission; nothing can be added, changed or deleted here."""

    paginator = EstimatedPaginator
    show_full_result_count = False
    list_per_page = 50
    actions = None
    sortable_by = ()

    def get_list_display(self, request: HttpRequest) -> Any:
        """The columns that the subclass names, else all but bytes."""
        if tuple(self.list_display) != ("__str__",):
            return self.list_display
        return [f.name for f in self.model._meta.concrete_fields if not isinstance(f, models.BinaryField)]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody adds."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody changes."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody deletes."""
        return False
