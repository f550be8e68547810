"""Statements that lift the server's time limits for sessions that wait while other work goes on (pure).

``idle_in_transaction_session_timeout`` ends a transaction that a program forgot. A job's transaction is not forgotten:
Spark reads in its snapshot, or its rows wait until the next ones are computed. For large jobs this takes hours. The same
holds for ``statement_timeout``, whose clock also runs while a COPY waits for its reader, and for ``transaction_timeout``,
which PostgreSQL has from 17 on. If the process dies, its session ends with the connection, with limits or without.
"""

from __future__ import annotations

__all__ = ["NO_LIMITS", "NO_LIMITS_IN_SESSION"]

_OF_TRANSACTION = "'idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout'"
_SET = "SELECT set_config(name, '0', {is_local}) FROM pg_settings WHERE name IN ({names})"  # old servers lack some
#: For the current transaction only, so it may go through a pooler. It is a query, so in an imported snapshot it comes
#: after ``SET TRANSACTION SNAPSHOT``, which must be first.
NO_LIMITS = _SET.format(is_local="true", names=_OF_TRANSACTION)
#: For a whole session of the caller's own, including the time between its transactions.
NO_LIMITS_IN_SESSION = _SET.format(is_local="false", names=f"{_OF_TRANSACTION}, 'idle_session_timeout'")
