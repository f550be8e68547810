"""Why the torture's writer asks for ``get_rollback``: what it must not take for a commit."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from tests.support.writing import append, ids, server_process, terminate


class Undo(Exception):
    """Rolls a block back."""


@pytest.mark.django_db(transaction=True)
def test_a_savepoint_on_a_lost_connection_undoes_the_transaction_without_an_error():
    with transaction.atomic():
        append()
        try:
            with transaction.atomic():
                terminate(server_process())
                raise Undo
        except Undo:
            assert transaction.get_rollback()
    connection.close()
    assert ids() == []
