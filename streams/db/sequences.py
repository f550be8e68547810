"""Moves a sequence forward while writers may take IDs from it at the same time.

A short distance is covered by calls of ``nextval``, which only ever go forward. A long distance is covered by ``setval``,
under a lock on the sequence that makes every ``nextval`` wait.
"""

from __future__ import annotations

from typing import Any

from streams.db import driver
from streams.errors import SequenceBusy

__all__ = ["STEPS_LIMIT", "move_forward"]

#: The most values that are taken one by one, which takes less than a second.
STEPS_LIMIT = 1_000_000
LOCK_SECONDS = 10
_LOCK_NOT_AVAILABLE = "55P03"

_LAST_VALUE = "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {sequence}"
_STEP = "SELECT count(nextval(%(sequence)s)) FROM generate_series(1, %(steps)s)"
#: Sets the sequence to a larger value. ALTER SEQUENCE changes nothing here, but takes the lock that makes ``nextval`` wait
#: until the transaction ends.
_JUMP = """
DO $jump$ BEGIN
    SET LOCAL lock_timeout = '{seconds}s';
    ALTER SEQUENCE {sequence} NO CYCLE;
    PERFORM setval('{sequence}', {value}) FROM {sequence} WHERE last_value < {value} OR NOT is_called;
END $jump$
"""


def move_forward(cursor: Any, sequence: str, value: int) -> None:
    """Moves the sequence forward, so that its next ID is larger than ``value``. Never lowers the sequence.

    If other sessions take IDs at the same time, the sequence may end up further than ``value``. If the distance is more
    than ``STEPS_LIMIT``, the function waits for open transactions that took IDs. Raises ``SequenceBusy`` if these
    transactions do not end within ``LOCK_SECONDS``.
    """
    cursor.execute(_LAST_VALUE.format(sequence=sequence))
    steps = value - int(cursor.fetchone()[0])
    if steps <= 0:
        return
    # Not `setval` without a lock: A reads 5 and wants 7, B takes 6 to 9 with nextval, A sets 7, and 8 and 9 come twice.
    if steps <= STEPS_LIMIT:
        cursor.execute(_STEP, {"sequence": sequence, "steps": steps})
        return
    try:
        cursor.execute(_JUMP.format(sequence=sequence, value=int(value), seconds=LOCK_SECONDS))
    except driver.DatabaseError as error:
        if driver.sqlstate(error) != _LOCK_NOT_AVAILABLE:
            raise
        raise SequenceBusy(
            f"The sequence {sequence} is to be moved to {value}, but transactions that took IDs from it did not end within "
            f"{LOCK_SECONDS} s. Stop the writers (manage.py streams names them), then run: manage.py check_streams --repair"
        ) from error
