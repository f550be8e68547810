"""Masking of passwords in text that is kept or shown: command lines, addresses, errors (pure).

The following is masked: the password of an address (``postgresql://user:PASSWORD@host``), and the values of
``password=``, ``secret:`` and the like in connection strings, queries of addresses, headers, dictionaries and SQL, also
where these are percent-encoded. On a command line, the value after an option that names a secret is masked as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

BLOT = "***"
#: Shorter secrets are not masked, because they could occur in ordinary words.
SHORTEST_SECRET = 6
_USER = re.compile(r"://[^:/]*:")
_NAMED = re.compile(
    r"(?i)(password|passwd|passphrase|\bpwd|secret(?:[_-]?key)?|\baccess_token|\bapi[_-]?key|\bauthorization)"
    r"(['\"]?\s*(?:=>|[=:])\s*|\s+(?=e?'))(?:(?:bearer|basic)\s+)?"
    r"(?:[brue]{0,2}(?:'(?:[^'\\]|\\.|'')*'?|\"(?:[^\"\\]|\\.)*\"?)[^\s,;&)}\]]*|(?:\\.|[^\s&])+)"
)
#: A password with an @ that should have been written as %40: the rest of it is taken for the beginning of the host's name.
_IN_HOST = re.compile(r"(host name \")[^\"]*(?=@)")
_WORD = re.compile(r"\S+")
_ENCODED = re.compile(r"(?:%[0-9a-fA-F]{2})+")
#: Most times that a word is percent-encoded.
_MOST_ENCODED = 3
_OPTION = re.compile(r"(?i)(--?[\w-]*(?:password|passwd|passphrase|secret|token|api-?key)[\w-]*)(=.*)?", re.DOTALL)
#: Options whose value says where a secret is, and is not the secret itself.
_NAMES_A_PLACE = re.compile(r"(?i)-(?:file|path|env|name|url)$")


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """Returns the text with the ``secrets`` and its passwords replaced by ``BLOT``."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, BLOT)
    if "://" in text:
        text = _WORD.sub(lambda word: _in_address(word[0]), text)
    text = _IN_HOST.sub(rf"\1{BLOT}", _named(text))
    return _WORD.sub(lambda word: _in_encoded(word[0]), text) if "%" in text else text


def _named(text: str) -> str:
    return _NAMED.sub(rf"\1\2{BLOT}", text)


def _in_address(text: str) -> str:
    """Returns a word, or an argument of a command line, with the password of its address masked, if it has one.

    The password ends at the last @, because it may contain an @ that should have been written as %40, and at nothing else that
    it contains: better too much is masked than too little.
    """
    end = text.rfind("@")
    user = _USER.search(text, 0, max(end, 0))
    return text if user is None or user.end() == end else f"{text[: user.end()]}{BLOT}{text[end:]}"


def _in_encoded(word: str) -> str:
    """Returns a word whose passwords that are not encoded are masked. If it has others, it is decoded, and they are masked."""
    decoded = word
    for _ in range(_MOST_ENCODED if "%" in word else 0):
        # An address that is not encoded has no password any more. http://h:8000/users/%40a would seem to have one.
        decoded = _ENCODED.sub(_characters, decoded.replace("://", "\0"))
        if (found := _named(_in_address(decoded))) != decoded:
            return found.replace("\0", "://")
    return word


def _characters(encoded: re.Match[str]) -> str:
    return bytes.fromhex(encoded[0].replace("%", "")).decode(errors="replace")


def masked_command(arguments: Sequence[str]) -> str:
    """Returns the arguments as one line, with passwords replaced by ``BLOT``."""
    words: list[str] = []
    hides_next = False
    for argument in arguments:
        option = _OPTION.fullmatch(argument)
        if hides_next and not argument.startswith("-"):
            words.append(BLOT)
            hides_next = False
        elif option and not _NAMES_A_PLACE.search(option[1]):
            words.append(f"{option[1]}={BLOT}" if option[2] else option[1])
            hides_next = not option[2]
        else:
            words.append(masked(_in_address(argument)))
            hides_next = False
    return " ".join(words)
