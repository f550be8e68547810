"""Sends a notice by mail and by a webhook. Each call blocks for ``TIMEOUT_SECONDS`` at most for each step of the network.

The text and the subject have no control characters: names and errors in them come from others. A channel's error never
has the webhook's address in it, which may hold a secret.
"""

from __future__ import annotations

import json
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


class NotDelivered(Exception):
    """A notice was not delivered on a channel. The message says why."""


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
    lines += [f"* {p['subject']} is {p['word']}: {p['sentence']}" for p in notice.problems]
    return "\n".join([*lines, "", f"{notice.at:%Y-%m-%d %H:%M:%S} UTC", *filter(None, [_link()])])


def document(notice: Notice) -> dict[str, Any]:
    """Returns the JSON object that the webhook gets."""
    return {
        "text": text(notice),
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
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise NotDelivered(f"mail: {error_text(error)}") from error


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
        raise NotDelivered(f"webhook: it answered {error.code}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise NotDelivered(
            f"webhook: {type(reason).__name__} {getattr(reason, 'strerror', None) or ''}".rstrip()
        ) from error


_SENDERS: Mapping[str, Callable[[Notice], None]] = {"mail": _mail, "webhook": _webhook}
