"""Moves a sequence forward while writers may take IDs from it at the same time.

A short distance is covered by calls of ``nextval``, which only ever go forward. A long distance is covered by ``setval``,
under a lock on the sequence that makes every ``nextval`` wait. Only the owner of the sequence can take this lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streams.core.sequences import last_values
from streams.db import driver
from streams.errors import SequenceBusy, SequenceUnfit

#: The most values that are taken one by one, which takes less than a second.
STEPS_LIMIT = 1_000_000
LOCK_SECONDS = 10
_LOCK_NOT_AVAILABLE, _NOT_ALLOWED = "55P03", "42501"
#: Who is not the owner of a sequence takes so many values in one statement.
_STEPS_AT_ONCE = 1_000_000

_STEP = "SELECT count(nextval(%(sequence)s)) FROM generate_series(1, %(steps)s)"
_IS_OWNED = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = %s::regclass"
#: ALTER SEQUENCE changes nothing here, but takes the lock that makes ``nextval`` wait until the transaction ends.
_HOLD = "SET LOCAL lock_timeout = '{seconds}s'; ALTER SEQUENCE {sequence} NO CYCLE;"
#: Sets the sequence to a larger value.
_JUMP = """
DO $jump$ BEGIN
    {hold}
    PERFORM setval('{sequence}', {value}) WHERE coalesce(pg_sequence_last_value('{sequence}'), 0) < {value};
END $jump$
"""


def move_forward(cursor: Any, sequence: str, value: int, *, lock_seconds: float = LOCK_SECONDS) -> None:
    """Moves the sequence forward, so that its next ID is larger than ``value``. Never lowers the sequence.

    If other sessions take IDs at the same time, the sequence may end up further than ``value``. If the distance is more
    than ``STEPS_LIMIT``, the function waits for open transactions that took IDs. Raises ``SequenceBusy`` if these
    transactions do not end within ``lock_seconds``. A role that does not own the sequence waits for nobody, but needs a
    second for some million IDs.
    """
    steps = value - last_values(cursor, [sequence])[sequence]
    if steps > STEPS_LIMIT and _is_owned(cursor, sequence):
        hold = _HOLD.format(sequence=sequence, seconds=lock_seconds)
        with _named(sequence, f"be moved to {value}"):
            cursor.execute(_JUMP.format(hold=hold, sequence=sequence, value=int(value)))
        return
    # Not `setval` without a lock: A reads 5 and wants 7, B takes 6 to 9 with nextval, A sets 7, and 8 and 9 come twice.
    for done in range(0, steps, _STEPS_AT_ONCE):
        cursor.execute(_STEP, {"sequence": sequence, "steps": min(steps - done, _STEPS_AT_ONCE)})


def hold(cursor: Any, sequence: str) -> None:
    """Makes every ``nextval`` of the sequence wait until the caller's transaction ends.

    Raises ``SequenceBusy`` if open transactions that took IDs do not end within ``LOCK_SECONDS``. Raises
    ``SequenceUnfit`` if the sequence belongs to another role.
    """
    with _named(sequence, "be altered"):
        cursor.execute(_HOLD.format(sequence=sequence, seconds=LOCK_SECONDS))


def _is_owned(cursor: Any, sequence: str) -> bool:
    cursor.execute(_IS_OWNED, [sequence])
    return bool(cursor.fetchone()[0])


@contextmanager
def _named(sequence: str, purpose: str) -> Iterator[None]:
    """Raises errors of a statement that needs the lock with the name of the sequence, and with what to do."""
    try:
        yield
    except driver.DatabaseError as error:
        if driver.sqlstate(error) == _LOCK_NOT_AVAILABLE:
            raise SequenceBusy(
                f"The sequence {sequence} is to {purpose}, but transactions that took IDs from it did not end within "
                f"{LOCK_SECONDS} s. Stop the writers (manage.py streams names them), then run: manage.py check_streams --repair"
            ) from error
        if driver.sqlstate(error) == _NOT_ALLOWED:
            raise SequenceUnfit(
                f"The sequence {sequence} is to {purpose}, but it belongs to another role. Run as its owner, as migrate is run: "
                f"manage.py check_streams --repair"
            ) from error
        raise
