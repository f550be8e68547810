"""The how-to about messages by mail and webhook: its environment is taken, and its JSON is what is posted."""

from __future__ import annotations

import json
import re
import uuid
from datetime import datetime

import pytest

from replsite.notices.channels import document
from streams.models import Notice
from tests.support.session import PROJECT

PAGE = (PROJECT / "docs" / "how-to" / "be-told-by-mail-or-webhook.md").read_text()
ENVIRONMENTS = [
    dict(line.split("=", 1) for line in block.strip().splitlines())
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
]


def test_the_page_has_an_environment_for_each_channel():
    assert [next(iter(one)) for one in ENVIRONMENTS] == ["REPLSITE_NOTICE_MAIL", "REPLSITE_NOTICE_URL"]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda one: next(iter(one)))
def test_a_site_takes_it(environment, run_manage):
    code = (
        "from django.conf import settings as s; print(s.REPLSITE_NOTICE_MAIL, s.REPLSITE_NOTICE_URL, s.EMAIL_HOST, "
        "s.EMAIL_PORT, s.EMAIL_USE_TLS, s.DEFAULT_FROM_EMAIL)"
    )
    assert run_manage("check", env=environment).returncode == 0
    shown = run_manage("shell", "--no-imports", "-c", code, env=environment).stdout
    if "REPLSITE_NOTICE_MAIL" in environment:
        assert "'boss@example.org'" in shown
        assert "mail.example.org 587 True replsite@example.org" in shown
    else:
        assert environment["REPLSITE_NOTICE_URL"] in shown


def test_the_json_is_what_is_posted(settings):
    settings.REPLSITE_NOTICE_LINK = "https://ops.example.org"
    (example,) = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
    problem = {"subject": "caches", "word": "blocked", "sentence": "…"}
    notice = Notice(
        key=uuid.UUID(example["id"]), at=datetime.fromisoformat(example["at"]), word="wrong",
        sentence="caches is blocked: …", problems=[problem],
    )  # fmt: skip
    posted = document(notice)
    assert posted["text"].startswith(example["text"])
    assert {**posted, "text": ""} == {**example, "text": ""}


@pytest.mark.parametrize("address", ["", "smtps://bot:12/34@", "smtps://bot:12?34@", "smtps://bot:12#34@"])
def test_a_mail_server_that_cannot_be_read_is_refused(run_manage, address):
    """Of a password with a character that is not escaped, the part before it would be the port of the host ``bot``."""
    refused = run_manage("check", env={"REPLSITE_MAIL_URL": f"{address}mail.example.org"})
    assert refused.returncode != 0
    assert "REPLSITE_MAIL_URL cannot be read" in refused.stderr and "write %2F for /" in refused.stderr
    assert "34" not in refused.stderr.rpartition("REPLSITE_MAIL_URL")[2]
