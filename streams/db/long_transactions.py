"""Statements that lift the server's time limits for sessions that wait while other work goes on (pure).

``idle_in_transaction_session_timeout`` exists to end transactions that a program forgot. The transaction of a job may
be idle for hours and is still needed: Spark reads in the transaction's snapshot, or the next rows to write are being
computed. Two more limits could end the transaction: ``statement_timeout``, which also counts the time that a COPY waits
for its reader, and ``transaction_timeout``, which exists from PostgreSQL 17 on. If the process dies, its session ends
in any case, because the connection ends.
"""

from __future__ import annotations

_OF_TRANSACTION = "'idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout'"
_SET = "SELECT set_config(name, '0', {is_local}) FROM pg_settings WHERE name IN ({names})"  # old servers lack some
#: Lifts the limits for the current transaction only, so it works through a pooler. It is a query, so in a transaction with
#: an imported snapshot it must come after ``SET TRANSACTION SNAPSHOT``, which must be the first statement.
NO_LIMITS = _SET.format(is_local="true", names=_OF_TRANSACTION)
#: Lifts the limits for the whole session, also between transactions. Only for a session that the caller does not share.
NO_LIMITS_IN_SESSION = _SET.format(is_local="false", names=f"{_OF_TRANSACTION}, 'idle_session_timeout'")
