"""Lifts the server's limits of time for sessions that wait while other work goes on (pure).

``idle_in_transaction_session_timeout`` ends a transaction that a program forgot. A job's transaction is not forgotten: it holds a
snapshot while Spark reads in it, or rows wait in it until the next ones are worked out, for hours if there is so much. The same
holds for ``statement_timeout``, whose clock also runs while a COPY waits for its reader, and for ``transaction_timeout``, which
PostgreSQL has from 17 on. The session of a process that is gone ends with its connection, limits or not.
"""

from __future__ import annotations

__all__ = ["NO_LIMITS", "NO_LIMITS_IN_SESSION"]

_OF_TRANSACTION = "'idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout'"
_SET = "SELECT set_config(name, '0', {is_local}) FROM pg_settings WHERE name IN ({names})"  # old servers lack some
#: For the transaction that it is said in, so it may go through a pooler. It is a query: in another's snapshot it comes after
#: ``SET TRANSACTION SNAPSHOT``, which must be first.
NO_LIMITS = _SET.format(is_local="true", names=_OF_TRANSACTION)
#: For a session of the caller's own, and for the time between its transactions.
NO_LIMITS_IN_SESSION = _SET.format(is_local="false", names=f"{_OF_TRANSACTION}, 'idle_session_timeout'")
