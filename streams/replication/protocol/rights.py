"""Rights of clients with certificates (pure): which names they may use, which streams they get, what they may report.

The setting ``REPLSITE_WIRE_RIGHTS`` maps names in certificates, or patterns for them, to rights. Patterns are those of
``streams.core.names``; ``*`` matches every name. Without the setting, every client has all rights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streams.core.names import matches_pattern
from streams.replication.errors import BadRights
from streams.replication.protocol.commands import COMMANDS, Command, Error, Name, Ping, Replicate, Side

_ALL = ("*",)
_CERTIFICATE = "{certificate}"
#: Commands that every client may send. NAME is checked by its argument.
_FREE = frozenset({Ping.WORD, Error.WORD, Replicate.WORD, Name.WORD})
#: Commands that clients send about themselves, or that are relayed to others.
REPORTS = frozenset(word for word, grammar in COMMANDS.items() if Side.CLIENT in grammar.senders) - _FREE


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a client: patterns for its name, for streams, and for the command words of reports."""

    names: tuple[str, ...] = _ALL
    certificate: str = ""
    """The name in the certificate. It replaces ``{certificate}`` in ``names``."""
    streams: tuple[str, ...] = _ALL
    reports: tuple[str, ...] = _ALL

    @property
    def are_none(self) -> bool:
        """True if the client may do nothing."""
        return not (self.names or self.streams or self.reports)

    def refusal(self, command: Command) -> str | None:
        """Returns the reason why the client may not send this command, or None if the client may send it."""
        if isinstance(command, Name):
            name = command.name
            is_own = name == self.certificate and _CERTIFICATE in self.names
            others = [pattern for pattern in self.names if pattern != _CERTIFICATE]
            return None if is_own or _is_among(name, others) else f"this certificate may not call itself {name[:100]}"
        if command.WORD in _FREE or _is_among(command.WORD, self.reports):
            return None
        return f"this certificate may not send {command.WORD}"

    def in_words(self) -> dict[str, Any]:
        """Returns the rights as stored in the table of readers: the name in the certificate, and the patterns of each kind."""
        names = [self.certificate if name == _CERTIFICATE else name for name in self.names]
        return {
            "certificate": self.certificate,
            "names": names,
            "streams": list(self.streams),
            "reports": list(self.reports),
        }

    def of_streams(self, streams: Collection[str]) -> frozenset[str] | None:
        """Returns those of ``streams`` that the client may follow, or None if it may follow all streams that exist."""
        if "*" in self.streams:
            return None
        return frozenset(stream for stream in streams if _is_among(stream, self.streams))


EVERYTHING = Rights()


class RightsTable:
    """The rights of all clients, by the names in their certificates. The constructor raises `BadRights` for unusable rights."""

    def __init__(self, given: Any) -> None:
        if not isinstance(given, Mapping):
            raise BadRights(
                'REPLSITE_WIRE_RIGHTS must be a JSON object such as {"worker{n}": {"streams": ["events"]}}.'
            )
        self._rights = {str(name): _rights(str(name), rights) for name, rights in given.items()}

    def of(self, certificate: str | None) -> Rights:
        """Returns the rights of a client whose certificate has the name ``certificate``.

        Returns the rights of the first name or pattern that matches ``certificate``. If no name or pattern matches, the
        client may do nothing, and `Rights.are_none` is true.

        A client in plain text has no certificate. It has all rights, because its network is in ``REPLSITE_PLAIN_NETWORKS``.
        """
        if certificate is None or not self._rights:
            return EVERYTHING
        for pattern, rights in self._rights.items():
            if _is_match(certificate, pattern):
                return replace(rights, certificate=certificate)
        return Rights((), certificate, (), ())


def _rights(name: str, given: Any) -> Rights:
    where = f"REPLSITE_WIRE_RIGHTS, {name!r}"
    if not isinstance(given, Mapping) or set(given) - {"names", "streams", "reports"}:
        raise BadRights(f"{where}: write an object with some of names, streams and reports.")
    parts: dict[str, tuple[str, ...]] = {}
    for key, patterns in given.items():
        if (
            isinstance(patterns, str)
            or not isinstance(patterns, Sequence)
            or not all(isinstance(p, str) for p in patterns)
        ):
            raise BadRights(f"{where}: {key} must be a list of texts.")
        parts[key] = tuple(patterns)
    if unknown := sorted(set(parts.get("reports", ())) - REPORTS - {"*"}):
        raise BadRights(f"{where}: there is no report {unknown[0]!r}; there are: {', '.join(sorted(REPORTS))}.")
    names, streams, reports = (parts.get(key, _ALL) for key in ("names", "streams", "reports"))
    return Rights(names, streams=streams, reports=reports)


def _is_among(name: str, patterns: Sequence[str]) -> bool:
    return any(_is_match(name, pattern) for pattern in patterns)


def _is_match(name: str, pattern: str) -> bool:
    return pattern == "*" or matches_pattern(name, pattern)
