"""What our statements and the drivers rely on in every session of ours (pure).

A role, a database or a server may have other values for its sessions. What comes of them is seldom an error: a NULL in
an array of the driver becomes a text, or the driver for bulk reads does not know a type any more.
"""

from __future__ import annotations

RELIED_ON = {
    "standard_conforming_strings": "on",
    "quote_all_identifiers": "off",
    "array_nulls": "on",
    "bytea_output": "hex",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
}
"""Settings that any role may change, by name."""


def with_relied_on(options: str) -> str:
    """Returns a value of libpq's parameter ``options`` that sets these settings before the driver reads any, and UTC.

    ``options`` has the options that the connection has otherwise. Not for connection poolers, which refuse most options.
    """
    settings = {**RELIED_ON, "TimeZone": "UTC"}
    return " ".join(filter(None, [options, *(f"-c {name}={value}" for name, value in settings.items())]))
