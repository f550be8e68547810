"""Sends a notice by mail and by a webhook.

Each call blocks for ``TIMEOUT_SECONDS`` at most for each step of the network. A server that goes on sending, or a name that
is not found, may take any time.

The text and the subject have no control characters: names and errors in them come from others. In the text for a webhook
they call nobody, and hide no address. A channel's error never has the webhook's address in it, which may hold a secret.
"""

from __future__ import annotations

import http.client
import json
import re
import smtplib
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from django.core.mail import EmailMessage, get_connection

from replsite.conf import site_settings
from replsite.notices.spells import WRONG
from streams.models import Notice
from streams.runtime.error_text import error_text
from streams.runtime.text import safe_text

TIMEOUT_SECONDS = 10.0
LIVE_PAGE = "/admin/live/"
#: Answers that are about this message. That of a wrong address or secret, or of too many messages, is about the channel.
_REFUSALS = (400, 413, 415, 422)
#: Chats take ``<!channel>``, ``<users/all>``, ``@here``, ``<https://evil|click here>`` and ``[click here](https://evil)`` in
#: a text for orders: they call everybody, or show a link as other words. Other signs, or one without width in between, look
#: the same. The IDs of users stay as they are, to be copied.
_SIGNS_OF_CHATS = {"<": "\u2039", ">": "\u203a", "@": "@\u2060", "](": "]\u2060("}
_SIGN_OF_CHATS = re.compile(r"[<>]|\]\(|@(?=channel|here|everyone|all)", re.IGNORECASE)


class NotDelivered(Exception):
    """A notice was not delivered on a channel. The message says why."""


class Refused(NotDelivered):
    """The channel works, and will never take this notice."""


def channels() -> list[str]:
    """Returns the names of the channels that the settings name."""
    settings = site_settings()
    return [name for name, target in (("mail", settings.notice_mail), ("webhook", settings.notice_url)) if target]


def send(channel: str, notice: Notice) -> None:
    """Sends the notice. Raises ``NotDelivered``. A channel that the settings name no more counts as delivered."""
    if channel in channels():
        _SENDERS[channel](notice)


def subject(notice: Notice) -> str:
    return safe_text(f"{_site()} is {notice.word}: {notice.sentence}", 150)


def text(notice: Notice) -> str:
    """Returns the message for people."""
    lines = [f"{_site()} is {'wrong' if notice.word == WRONG else 'well again'}.", "", safe_text(notice.sentence, 500)]
    lines += [
        f"* {p['subject']} {'' if p['word'] == 'failed' else 'is '}{p['word']}: {p['sentence']}"
        for p in notice.problems
    ]
    return "\n".join([*lines, "", f"{notice.at:%Y-%m-%d %H:%M:%S} UTC", *filter(None, [_link()])])


def document(notice: Notice) -> dict[str, Any]:
    """Returns the JSON object that the webhook gets."""
    return {
        "text": _SIGN_OF_CHATS.sub(lambda sign: _SIGNS_OF_CHATS[sign[0]], text(notice)),
        "id": str(notice.key),
        "site": _site(),
        "word": notice.word,
        "at": notice.at.isoformat(),
        "sentence": safe_text(notice.sentence, 500),
        "problems": notice.problems,
        "url": _link(),
    }


def _site() -> str:
    return urlsplit(site_settings().notice_link).hostname or socket.gethostname()


def _link() -> str:
    link = site_settings().notice_link
    return urljoin(link, LIVE_PAGE) if link else ""


def _mail(notice: Notice) -> None:
    message = EmailMessage(
        subject(notice),
        text(notice),
        to=list(site_settings().notice_mail),
        # The same each time, so that a mailbox shows a message that was sent twice once.
        headers={"Message-ID": f"<{notice.key}@{_site()}>", "Auto-Submitted": "auto-generated"},
        connection=get_connection(timeout=TIMEOUT_SECONDS),
    )
    try:
        message.send()
    except Exception as error:  # the project's own backend may raise anything
        kind = Refused if _is_for_ever(error) else NotDelivered
        raise kind(f"mail: {error_text(error)}") from error


def _is_for_ever(error: Exception) -> bool:
    # By the codes of SMTP: 4yz is for now, 5yz for ever. A login that is refused is about the channel.
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code >= 500 for code, _ in error.recipients.values())
    return isinstance(error, (smtplib.SMTPDataError, smtplib.SMTPSenderRefused)) and error.smtp_code >= 500


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Returns None: a POST that is redirected would become a GET without the message."""


def _webhook(notice: Notice) -> None:
    body = json.dumps(document(notice)).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "replsite"}
    request = urllib.request.Request(site_settings().notice_url, body, headers)  # noqa: S310 - a check refuses other schemes
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_SECONDS) as answer:
            answer.read(1_000)
    except urllib.error.HTTPError as error:
        error.close()
        kind = Refused if error.code in _REFUSALS else NotDelivered
        raise kind(f"webhook: it answered {error.code}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise NotDelivered(
            f"webhook: {type(reason).__name__} {getattr(reason, 'strerror', None) or ''}".rstrip()
        ) from error


_SENDERS: Mapping[str, Callable[[Notice], None]] = {"mail": _mail, "webhook": _webhook}
