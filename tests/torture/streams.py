"""The streams that are tortured: one by itself, and two that share a sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["STREAMS", "TorturedStream"]


@dataclass(frozen=True, slots=True)
class TorturedStream:
    """Where its facts are, and how one is made."""

    model: str
    table: str
    columns: tuple[str, ...]
    """Those that the writer fills: the first ones of the wire row, too."""
    sequence: str

    def fact(self, text: str, **more: Any) -> Any:
        """A fact that was not appended yet; ``text`` is different for each."""
        from streams import models

        values = (["torture", [text]] if len(self.columns) > 1 else [text])[: len(self.columns)]
        return getattr(models, self.model)(**dict(zip(self.columns, values, strict=True)), **more)


STREAMS = {
    "caches": TorturedStream(
        "CacheInvalidation", "streams_cacheinvalidation", ("cache_name", "keys"), "streams_cacheinvalidation_seq"
    ),
    "device_lists": TorturedStream(
        "DeviceListChange", "streams_devicelistchange", ("entity",), "streams_devicelistchange_seq"
    ),
    "user_signature": TorturedStream(
        "UserSignatureChange", "streams_usersignaturechange", ("user_id",), "streams_devicelistchange_seq"
    ),
}
