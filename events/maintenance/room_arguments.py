"""The arguments that name rooms, for the operations that take some."""

from __future__ import annotations

from streams.jobs.arguments import Argument, Type

#: With these attributes of a field, ``room_search.js`` adds a search for rooms.
SEARCHED = {"data-rooms": "", "autocomplete": "off"}

ROOM = Argument(
    "room", Type.TEXT, "the room", typed="ROOM", required=True, must="the ID of a room",
    in_form="its ID, such as !abc:example.org", attributes=SEARCHED,
)  # fmt: skip
ROOMS = Argument(
    "rooms", Type.LINES, "these rooms", typed="ROOM", must="a list of room IDs",
    in_form="their IDs, one a line; none: all rooms", attributes=SEARCHED,
)  # fmt: skip
ALL_ROOMS = Argument("all", Type.FLAG, "all rooms", stored=False, instead_of=ROOMS.name)
