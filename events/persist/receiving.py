"""What another server tells -> a batch for ``events.persist.batch``: an event with the state that it stands on.

The answer to a join, or to the question for the state before an event above a gap, is a list of state events and their auth
chain. They go in as outliers, in one batch with the event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from events.errors import EventRefused
from events.format.parsing import parse_event
from events.format.strict_json import decode_event
from events.persist.batch import Incoming

__all__ = ["with_state"]


def with_state(event: Incoming, state: Iterable[bytes], auth_chain: Iterable[bytes] = ()) -> list[Incoming]:
    """The batch that stores ``event`` on top of the given state; ``event.room_version`` must be told.

    What cannot be read is still in the batch, so ``persist`` refuses it by name, but it counts for nothing in the state.
    """
    if event.room_version is None:
        raise ValueError("The room version has to be told: nothing else tells how to read the state.")
    version = event.room_version
    texts = list(state)
    known = [event_id for text in texts if (event_id := _event_id(text, version)) is not None]
    outliers = [Incoming(text, version, outlier=True) for text in dict.fromkeys([*auth_chain, *texts])]
    return [*outliers, replace(event, state_before=tuple(dict.fromkeys(known)))]


def _event_id(text: bytes, version: str) -> str | None:
    try:
        return parse_event(text, decode_event(text), version).event_id
    except EventRefused:
        return None
