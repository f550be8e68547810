"""The features of room versions 1 to 12, as a table (pure).

Each version is its predecessor with a few features changed. Code asks for a feature, never for a version number.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from state.errors import UnknownRoomVersion


class EventIdForm(Enum):
    """The ways in which an event gets its ID."""

    CHOSEN = "chosen by the sender, a field of the event"
    HASH = "$ and the reference hash in standard base64"
    URLSAFE_HASH = "$ and the reference hash in URL-safe base64"


class Resolution(Enum):
    """The algorithms of state resolution."""

    V1 = "1"
    V2 = "2"
    V2_1 = "2.1"


@dataclass(frozen=True, slots=True)
class RoomVersion:
    """The features of one room version. The defaults are those of version 1."""

    name: str
    resolution: Resolution = Resolution.V1
    event_id_form: EventIdForm = EventIdForm.CHOSEN
    enforces_key_validity: bool = False
    """A signature is valid only if its key had not expired when the event was made."""
    strict_json: bool = False
    """All numbers in an event must be integers within ±(2^53 - 1)."""
    aliases_are_special: bool = True
    """Events of type m.room.aliases have an auth rule and a redaction rule of their own."""
    checks_notification_levels: bool = False
    knocking: bool = False
    restricted_joins: bool = False
    redaction_keeps_authorising_user: bool = False
    integer_power_levels: bool = False
    knock_restricted_joins: bool = False
    newer_redactions: bool = False
    """The redaction rules of version 11 apply: ``redacts`` is in the content, and the sender is the room's creator."""
    room_id_is_create_hash: bool = False
    """The create event has no room ID, and no event lists it as auth event. The creators outrank all other users."""

    ids_are_hashes: bool = field(init=False)
    """True from version 3 on: the event ID is computed from the event, not chosen by the sender."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids_are_hashes", self.event_id_form is not EventIdForm.CHOSEN)


def _versions() -> dict[str, RoomVersion]:
    v1 = RoomVersion("1")
    v2 = replace(v1, name="2", resolution=Resolution.V2)
    v3 = replace(v2, name="3", event_id_form=EventIdForm.HASH)
    v4 = replace(v3, name="4", event_id_form=EventIdForm.URLSAFE_HASH)
    v5 = replace(v4, name="5", enforces_key_validity=True)
    v6 = replace(v5, name="6", strict_json=True, aliases_are_special=False, checks_notification_levels=True)
    v7 = replace(v6, name="7", knocking=True)
    v8 = replace(v7, name="8", restricted_joins=True)
    v9 = replace(v8, name="9", redaction_keeps_authorising_user=True)
    v10 = replace(v9, name="10", integer_power_levels=True, knock_restricted_joins=True)
    v11 = replace(v10, name="11", newer_redactions=True)
    v12 = replace(v11, name="12", resolution=Resolution.V2_1, room_id_is_create_hash=True)
    return {version.name: version for version in (v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12)}


ROOM_VERSIONS: dict[str, RoomVersion] = _versions()
"""Name -> features."""


def room_version(name: str) -> RoomVersion:
    try:
        return ROOM_VERSIONS[name]
    except KeyError:
        raise UnknownRoomVersion(
            f"There are no rules for room version {name!r}. Known versions: {', '.join(ROOM_VERSIONS)}."
        ) from None
