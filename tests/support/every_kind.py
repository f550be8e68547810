"""A stream with a field of every kind, declared for the tests of one module."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.apps import apps
from django.contrib.postgres.fields import ArrayField
from django.db import connection, models
from hypothesis import strategies as st

from streams.core import lookup
from streams.declare import stream
from streams.facts import Fact
from tests.support import emptying

NAME = "every_kind"
#: A name that needs quotes in SQL, as some columns have, too.
TABLE = "Test {every} kind of Order"


class Size(models.TextChoices):
    """What an enumeration of a project looks like."""

    SMALL = "s"
    LARGE = "l"


class Encoder(json.JSONEncoder):
    """Writes sets."""

    def default(self, o: Any) -> Any:
        return {"set": sorted(o)} if isinstance(o, set) else super().default(o)


class Decoder(json.JSONDecoder):
    """Reads sets."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(
            *args, object_hook=lambda found: set(found["set"]) if set(found) == {"set"} else found, **kwargs
        )


class Shout(models.TextField):
    """A field with values of its own: upper case in Python, lower case in the database."""

    def get_prep_value(self, value: Any) -> Any:
        return None if value is None else str(value).lower()

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return None if value is None else value.upper()


@contextmanager
def declared(blocker: Any) -> Iterator[tuple[type[Any], type[Any]]]:
    """Yields the model of the stream, and the model to which its foreign key points."""
    known = {name: dict(getattr(lookup, name)) for name in ("_streams", "_by_table")}

    @stream(NAME)
    class EveryKind(Fact):
        word = models.TextField(null=True, db_column="select")
        short = models.CharField(max_length=9, null=True)
        slug = models.SlugField(null=True)
        number = models.BigIntegerField(null=True, db_column="Große Zahl, (netto)")
        small = models.IntegerField(null=True)
        smaller = models.SmallIntegerField(null=True)
        flag = models.BooleanField(null=True)
        thing = models.JSONField(null=True, db_column="It's {a} thing")
        sets = models.JSONField(null=True, encoder=Encoder, decoder=Decoder)
        words = ArrayField(models.TextField(null=True), null=True, db_column="Words")
        numbers = ArrayField(models.BigIntegerField(null=True), null=True)
        grid = ArrayField(ArrayField(models.IntegerField()), null=True)
        prices = ArrayField(models.DecimalField(max_digits=12, decimal_places=2, null=True), null=True)
        moments = ArrayField(models.DateTimeField(null=True), null=True)
        total = models.DecimalField(max_digits=20, decimal_places=6, null=True)
        ratio = models.FloatField(null=True)
        moment = models.DateTimeField(null=True)
        day = models.DateField(null=True)
        hour = models.TimeField(null=True)
        pause = models.DurationField(null=True)
        uid = models.UUIDField(null=True)
        blob = models.BinaryField(null=True)
        address = models.GenericIPAddressField(null=True)
        size = models.CharField(max_length=1, choices=Size, null=True)
        shout = Shout(null=True)
        shop = models.ForeignKey("streams.EveryShop", models.PROTECT, null=True)
        order = models.IntegerField(null=True, db_column="user")
        größe = models.TextField(null=True)  # noqa: PLC2401 - names may be of any language

        class Meta:
            app_label = "streams"
            db_table = TABLE

    class EveryShop(models.Model):  # noqa: DJ008
        code = models.UUIDField(primary_key=True)

        class Meta:
            app_label = "streams"
            db_table = "test_every_shop"

    with blocker.unblock(), connection.schema_editor() as editor:
        editor.create_model(EveryShop)
        editor.create_model(EveryKind)
    emptying.forget_tables()  # there are more to empty
    try:
        yield EveryKind, EveryShop
    finally:
        emptying.forget_tables()
        with blocker.unblock(), connection.schema_editor() as editor:
            editor.delete_model(EveryKind)
            editor.delete_model(EveryShop)
        for name, before in known.items():
            found = getattr(lookup, name)
            found.clear()
            found.update(before)
        for name in ("everykind", "everyshop"):
            del apps.all_models["streams"][name]
        apps.clear_cache()


SHOP = UUID(int=7)
PLAIN: dict[str, Any] = {
    "word": 'ü " \\ \n \x7f', "short": "s", "slug": "a-b", "number": 2**62, "small": -5, "smaller": 7, "flag": True,
    "thing": {"b": [1, None, {"a": 1.5}], "a": "ü"}, "sets": {"x": {1, 2}}, "words": ["x", None, '"'], "numbers": [1, None],
    "grid": [[1, 2], [3, 4]], "prices": [Decimal("1.50"), None], "moments": [datetime(2026, 1, 2, 3, 4, 5, 6, UTC), None],
    "total": Decimal("-12.500000"), "ratio": 0.1, "moment": datetime(1999, 12, 31, 23, 59, 59, 999999, UTC),
    "day": date(999, 1, 1), "hour": time(1, 2, 3, 4), "pause": timedelta(days=-3, seconds=7, microseconds=9),
    "uid": UUID(int=2**100), "blob": bytes(range(256)), "address": "2001:db8::1", "size": Size.LARGE, "shout": "LOUD",
    "shop_id": SHOP, "order": 3, "größe": "ß",
}  # fmt: skip
#: Values of all fields, as an append is given them.
FACTS: list[dict[str, Any]] = [
    PLAIN,
    dict.fromkeys(PLAIN),
    PLAIN | {"words": [], "numbers": [], "prices": [], "moments": [], "grid": [], "thing": [], "word": "", "blob": b""},
    PLAIN | {"thing": "a string", "ratio": 5.0, "total": Decimal(0), "pause": timedelta(0), "address": "10.0.0.1"},
    PLAIN
    | {
        "thing": '{"looks": "like JSON"}',
        "ratio": -1e300,
        "pause": timedelta.max,
        "moment": datetime.max.replace(tzinfo=UTC),
    },
    PLAIN | {"thing": 12345678901234567890, "ratio": float("inf"), "moment": datetime.min.replace(tzinfo=UTC)},
    PLAIN
    | {
        "thing": False,
        "ratio": 5e-324,
        "hour": time(23, 59, 59, 999999),
        "day": date.max,
        "number": -(2**63),
        "small": -(2**31),
        "smaller": -(2**15),
    },
]


def wire(given: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a fact, worked out here once more: the test's own idea of the form."""
    return {name.removesuffix("_id"): _value(name, value) for name, value in given.items()} | {"@version": 1}


def _value(name: str, value: Any) -> Any:  # noqa: PLR0911
    match value:
        case list() if name != "thing":
            return [_value(name, one) for one in value]
        case datetime():
            return value.astimezone(UTC).strftime(f"{value.astimezone(UTC).year:04}-%m-%dT%H:%M:%S.%fZ")
        case date():
            return value.isoformat()
        case time():
            return value.isoformat("microseconds")
        case timedelta():
            micro = value // timedelta(microseconds=1)
            return f"{'-' if micro < 0 else ''}PT{abs(micro) // 10**6}.{abs(micro) % 10**6:06}S"
        case Decimal():
            return f"{value:.{2 if name == 'prices' else 6}f}"
        case UUID():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case float() if value in (float("inf"), -float("inf")):
            return "Infinity" if value > 0 else "-Infinity"
        case dict() if name == "sets":
            return {key: {"set": sorted(one)} for key, one in value.items()}
        case str() if name == "shout":
            return value.lower()
    return value


def strategy() -> Any:
    """Facts with any values, or none, in any field."""
    text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
    moments = st.datetimes(timezones=st.sampled_from([UTC, ZoneInfo("Asia/Kathmandu")])).filter(_is_a_year_in_utc)
    json_value = st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**30), 10**30)
        | st.floats(allow_nan=False, allow_infinity=False)
        | text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=6,
    )
    small = st.integers(-(2**31), 2**31 - 1)
    prices = st.decimals(-10_000, 10_000, places=2)
    of_field = {
        "word": text, "short": text, "slug": text, "number": st.integers(-(2**63), 2**63 - 1), "small": small,
        "smaller": st.integers(-(2**15), 2**15 - 1), "flag": st.booleans(), "thing": json_value,
        "sets": st.dictionaries(text, st.sets(st.integers(0, 9), max_size=3), max_size=2),
        "words": st.lists(st.none() | text, max_size=3), "numbers": st.lists(st.none() | small, max_size=3),
        "grid": st.lists(st.tuples(small, small).map(list), max_size=3), "prices": st.lists(st.none() | prices, max_size=3),
        "moments": st.lists(st.none() | moments, max_size=3), "total": st.decimals(-(10**13), 10**13, places=6),
        "ratio": st.floats(allow_nan=False), "moment": moments, "day": st.dates(), "hour": st.times(),
        "pause": st.timedeltas(), "uid": st.uuids(), "blob": st.binary(max_size=90),
        "address": st.ip_addresses().map(str), "size": st.sampled_from(Size), "shout": st.sampled_from(["A", "\"Q"]),
        "shop_id": st.just(SHOP), "order": small, "größe": text,
    }  # fmt: skip
    return st.fixed_dictionaries({name: st.none() | values for name, values in of_field.items()})


def _is_a_year_in_utc(moment: datetime) -> bool:
    try:
        moment.astimezone(UTC)
    except OverflowError:
        return False
    return True
