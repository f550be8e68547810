"""The schemas of the API's responses and requests, of which the OpenAPI description is made."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from ninja import Schema
from pydantic import ConfigDict, Field

from replsite.live_rows.streams import StreamRow

#: An event in the form for clients.
Event = dict[str, Any]


class Refused(Schema):
    """The answer to a request that was not carried out."""

    errcode: Annotated[str, Field(examples=["M_NOT_FOUND"], description="one of a few stable words, like Matrix's own")]
    error: Annotated[str, Field(examples=["There is no room '!abc:example.org'."], description="a sentence for people")]
    permission: Annotated[str | None, Field(description="the permission that the user lacks, with M_FORBIDDEN")] = None


def answers(good: Any, *, status: int = 200) -> dict[Any, Any]:
    """Returns the schema of an operation's answer for each HTTP status: ``good`` for ``status``, ``Refused`` for errors."""
    return {status: good, **dict.fromkeys((400, 401, 403, 404, 409, 413, 429, 503), Refused)}


class Asked(Schema):
    """Base class of the JSON bodies of requests. Unknown names are refused, so that a mistyped name is not ignored."""

    model_config = ConfigDict(extra="forbid")


class TokenDetails(Schema):
    """The API token of the request, with the permissions of its user."""

    name: str
    user: str
    read_only: bool
    expires_at: datetime
    permissions: list[str]


# --- rooms ------------------------------------------------------------------------------------------------------------


class Room(Schema):
    """A room in a list. Name, topic and other texts come from the room's current state. A text that the state lacks is null."""

    room_id: str
    room_version: str
    creator: str | None
    name: str | None
    canonical_alias: str | None
    topic: str | None
    room_type: str | None
    join_rules: str | None
    history_visibility: str | None
    guest_access: str | None
    encryption: str | None
    joined_members: int
    events: Annotated[int, Field(description="stored events, with any verdict")]
    last_event_at: Annotated[datetime | None, Field(description="of the newest accepted event; null: there is none")]


class RoomList(Schema):
    """A page of rooms, sorted by room ID."""

    rooms: list[Room]
    next_batch: Annotated[str | None, Field(description="for `from` of the next request; null: there are no more")]


class RoomDetails(Room):
    """A room with its numbers of members, and with the forward and backward extremities of its graph."""

    create_event_id: str | None
    members: Annotated[dict[str, int], Field(description="membership -> users, counted now")]
    forward_extremities: Annotated[list[str], Field(description="at most 50")]
    backward_extremities: Annotated[list[str], Field(description="at most 50; events that are missing here")]
    current_state_unresolved: bool
    visibility_unresolved: bool


class Member(Schema):
    """A member of a room."""

    user_id: str
    membership: str | None
    event_id: str


class Members(Schema):
    """A page of a room's members, sorted by user ID."""

    members: list[Member]
    next_batch: str | None


class State(Schema):
    """A page of the entries of a state, sorted by type and state key. Each entry is an event in the form for clients."""

    state: list[Event]
    total: Annotated[int, Field(description="entries of the whole state")]
    next_batch: str | None


class Messages(Schema):
    """A page of a room's events."""

    chunk: list[Event]
    start: Annotated[str | None, Field(description="where this page begins")]
    end: Annotated[str | None, Field(description="for `from` of the next page; null: there is no more")]


class EventDetails(Schema):
    """An event with its place in the stream and the room, and the results of event auth."""

    event: Event
    writer: str
    stream_ordering: int
    topological_ordering: int
    token: Annotated[str, Field(description="its place in the room; a page before or after it begins here")]
    outlier: bool
    soft_failed: bool
    rejected_reason: str | None
    redacted_by: str | None
    state_group: int | None
    prev_events: list[str]


class Entry(Schema):
    """One entry of a state: its type, its state key and the ID of its event."""

    type: str
    state_key: str
    event_id: str


class EventState(Schema):
    """The states before and after an event. Both are null for an outlier."""

    before: list[Entry] | None
    after: list[Entry] | None


class Visibility(Schema):
    """The answer whether a user sees an event, and the rule that decided it."""

    event_id: str
    error: Annotated[str | None, Field(description="`unknown` or `unresolved`: no more is known then")] = None
    seen: bool | None = None
    allowed: bool | None = None
    reachable: bool | None = None
    pruned: bool | None = None
    rule: str | None = None
    membership: str | None = None
    history_visibility: str | None = None
    state_group: int | None = None
    reach: str | None = None
    peeking: bool | None = None
    redacted_by: str | None = None


class VisibilityList(Schema):
    """One answer for each requested event, in the order of the request."""

    events: list[Visibility]


class UserRooms(Schema):
    """A page of the IDs of a user's rooms, in ascending order."""

    rooms: list[str]
    next_batch: str | None


class Sync(Schema):
    """The changes for a user: rooms in the form of Matrix's client API, and changes of the other streams."""

    next_batch: str
    full: Annotated[bool, Field(description="discard all earlier answers: this one is complete")]
    rooms: dict[str, dict[str, Any]]
    streams: dict[str, Any]


# --- jobs -------------------------------------------------------------------------------------------------------------


class JobKind(Schema):
    """A kind of job and its arguments."""

    kind: str
    help: str
    changes_nothing: bool
    arguments: dict[str, str]


class Job(Schema):
    """A job, with its progress and its figures."""

    job: int
    kind: str
    state: Annotated[str, Field(description="queued, running, killed, done, failed or cancelled")]
    arguments: Any
    asked_by: str
    progress: str
    seconds_left: float | None
    error: str
    before: Any
    after: Any
    summary: Any
    queued_at: datetime | None
    began_at: datetime | None
    ended_at: datetime | None


class JobList(Schema):
    """A page of jobs, the newest first."""

    jobs: list[Job]
    next_batch: Annotated[int | None, Field(description="for `from` of the next request; null: there are no more")]


class Queue(Asked):
    """A request to queue a job. The arguments are those of the command for this kind of job."""

    kind: Annotated[str, Field(examples=["check streams"])]
    arguments: dict[str, Any] = {}


class PurgeHistory(Asked):
    """A request to purge a room's history. One of `before`, `before_time` and `before_token` is needed."""

    before: Annotated[str | None, Field(description="everything of less depth than this event; that stays")] = None
    before_time: Annotated[int | str | None, Field(description="a time, or an age such as 30d")] = None
    before_token: Annotated[str | None, Field(description="a token of the room's timeline")] = None
    delete_local: Annotated[bool, Field(description="messages of this server go, too")] = False
    archive: Annotated[str | None, Field(description="a folder for an archive that is written first")] = None
    dry_run: Annotated[bool, Field(description="only count what would be deleted")] = False


class PurgeRoom(Asked):
    """A request to purge a whole room."""

    force: Annotated[bool, Field(description="even while users of this server are joined")] = False
    block: Annotated[bool, Field(description="the room is not made again when its events arrive")] = False
    archive: Annotated[str | None, Field(description="a folder for an archive that is written first")] = None
    dry_run: Annotated[bool, Field(description="only count what would be deleted")] = False


# --- streams ----------------------------------------------------------------------------------------------------------


class Health(Schema):
    """The state of the whole site in one word and one sentence."""

    as_of: datetime
    version: str
    health: str
    sentence: str
    problems: list[str]


class _WithStatus(Schema):
    """Base class of the rows of the live page's tables. Their other fields are attributes of the row."""

    status: str
    severity: str
    sentence: str

    @staticmethod
    def resolve_status(row: Any) -> str:
        return str(row.status.word)

    @staticmethod
    def resolve_severity(row: Any) -> str:
        return str(row.status.severity.name.lower())

    @staticmethod
    def resolve_sentence(row: Any) -> str:
        return str(row.status.sentence)


class Writer(_WithStatus):
    """A writer of one stream."""

    writer: str
    stream: str
    state: str
    position: int
    behind_facts: int
    behind_seconds: float
    facts_written: int
    last_write_position: int | None
    last_write_at: datetime | None
    held_since: datetime | None
    held_seconds: float | None
    held_by: Annotated[str, Field(description="the oldest open append that may be its own; empty: there is none")]


class Holder(_WithStatus):
    """An open append, behind which linear readers wait: a session, or a prepared transaction."""

    pid: int | None
    prepared: str
    since: datetime | None
    seconds: float | None
    state: str
    role: str
    application: str
    client: str
    statement: Annotated[str, Field(description="its last statement, without the texts in it")]
    bound: Annotated[int, Field(description="it holds the stream back at this position")]


class Stream(_WithStatus):
    """A stream with its writers, and the open appends that hold it back now."""

    stream: str
    head: int
    linear_position: int
    last_fact_at: datetime | None
    writers: list[Writer]
    holders: Annotated[list[Holder], Field(description="the one that holds it back first")]

    @staticmethod
    def resolve_stream(row: StreamRow) -> str:
        return row.name


class ReaderStream(_WithStatus):
    """A reader on one stream: its position, its lag, its dead letters and its status."""

    stream: str
    position: int
    lag_facts: int
    lag_seconds: float
    parked_facts: int


class WireRights(Schema):
    """The rights of a connection's TLS certificate, as patterns, and the number of commands that these rights did not allow."""

    certificate: str
    names: list[str]
    streams: list[str]
    reports: list[str]
    refused: int
    refusal: str


class Reader(_WithStatus):
    """A reader: a connection, a follower or a Spark query."""

    key: str
    name: str
    kind: str
    address: str
    served_by: str
    connected_at: datetime
    heartbeat_at: datetime
    closed_at: datetime | None
    lag_facts: int
    lag_seconds: float
    streams: list[ReaderStream]
    rights: WireRights | None


class DeadLetter(Schema):
    """A fact that a reader's handlers could not take."""

    stream: str
    token: int
    writer: str
    attempts: int
    parked_at: datetime
    tried_at: datetime
    error: str
    traceback: str


class DeadLetterList(Schema):
    """A page of dead letters."""

    parked: list[DeadLetter]
    next_batch: str | None


class Replay(Schema):
    sentences: list[str] = Field(description="what would be handled again, what not, and what the times mean")


class ActionDone(Schema):
    """The result of an operator's action, as a sentence."""

    result: str
