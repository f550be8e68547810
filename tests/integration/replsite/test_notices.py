"""Messages by mail and webhook: each once, on each channel, whatever ends between."""

from __future__ import annotations

import email
import json
import socket
import threading
from contextlib import contextmanager, suppress
from email import policy
from types import SimpleNamespace

import pytest
from django.core.checks import run_checks
from django.db import OperationalError, connections
from django.db.models.functions import Now

from replsite.notices import sender as senders
from replsite.notices.sender import NoticeSender
from replsite.status.words import Health, HealthWord, Problem, Severity, Verdict
from streams.models import Notice
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.support.webhook import webhook
from tests.support.writing import held_open

pytestmark = pytest.mark.django_db(transaction=True)
BLOCKED = Problem("caches", Verdict("blocked", Severity.WRONG, "An append is open\nfor long."))


class Site:
    """A site as its snapshot shows it."""

    def __init__(self):
        self.problems = ()
        self.error = None

    def get(self):
        if self.error is not None:
            raise self.error
        word = HealthWord.WRONG if self.problems else HealthWord.WELL
        sentence = f"caches is blocked: {BLOCKED.verdict.sentence}" if self.problems else "All is well."
        return SimpleNamespace(health=Health(word, sentence, self.problems))


@pytest.fixture
def site():
    return Site()


@pytest.fixture
def hook():
    with webhook() as made:
        yield made


@pytest.fixture
def told(settings, tmp_path, hook):
    """Mail goes to files, and both channels are on. Returns the mails."""
    settings.EMAIL_BACKEND, settings.EMAIL_FILE_PATH = "django.core.mail.backends.filebased.EmailBackend", str(tmp_path)
    settings.REPLSITE_NOTICE_MAIL = ["ops@example.org"]
    settings.REPLSITE_NOTICE_URL = hook.url
    settings.REPLSITE_NOTICE_LINK = "https://ops.example.org"
    settings.REPLSITE_NOTICE_AFTER_SECONDS = settings.REPLSITE_NOTICE_WELL_AFTER_SECONDS = 0.0

    def mails():
        parts = [part for file in sorted(tmp_path.iterdir()) for part in file.read_bytes().split(b"-" * 79 + b"\n")]
        return [email.message_from_bytes(part, policy=policy.default) for part in parts if part.strip()]

    return mails


@pytest.fixture
def sender(site, told):
    made = []

    def begin():
        for old in made:
            old.stop()
            old._close()
        made.append(NoticeSender(site.get))
        made[-1].look()  # takes the lock
        return made[-1]

    yield begin
    for one in made:
        one._close()


def test_people_are_told_once_that_it_is_wrong_and_once_that_it_is_well(sender, site, told, hook):
    mine = sender()
    mine.look()
    assert (told(), hook.got) == ([], [])
    site.problems = (BLOCKED,)
    for _ in range(3):
        mine.look()
    (mail,), (post,) = told(), hook.got
    assert mail["To"] == "ops@example.org"
    assert mail["Subject"].startswith("ops.example.org is wrong: caches is blocked: An append is open")
    assert "https://ops.example.org/admin/live/" in mail.get_content()
    assert post["id"] in mail["Message-ID"]
    assert (post["site"], post["word"], post["problems"][0]["subject"]) == ("ops.example.org", "wrong", "caches")
    site.problems = ()
    for _ in range(3):
        mine.look()
    assert [one["word"] for one in hook.got] == ["wrong", "well"]
    assert len(told()) == 2
    assert [(one.word, one.waiting) for one in Notice.objects.all()] == [("well", []), ("wrong", [])]


def test_a_process_that_takes_over_knows_what_was_told(sender, site, hook):
    site.problems = (BLOCKED,)
    sender().look()
    for _ in range(2):
        sender().look()
    site.problems = ()
    sender().look()
    assert [one["word"] for one in hook.got] == ["wrong", "well"]


def test_of_two_processes_one_tells(sender, site, hook):
    mine, other = sender(), NoticeSender(site.get)
    site.problems = (BLOCKED,)
    mine.look()
    for _ in range(2):
        other.look()
    assert other._connection is None
    assert len(hook.got) == 1


@pytest.mark.parametrize("status", [500, 302])
def test_a_channel_that_refuses_is_tried_again_by_whoever_leads_and_the_other_is_not(sender, site, told, hook, status):
    hook.status, site.problems = status, (BLOCKED,)
    sender().look()
    notice = Notice.objects.get()
    assert (notice.waiting, notice.attempts, notice.error) == (["webhook"], 1, f"webhook: it answered {status}")
    hook.status = 200
    mine = sender()
    mine.look()
    assert hook.got == [], "not at once"
    Notice.objects.update(tried_at=Now() - senders.GIVEN_UP_AFTER / 100)
    mine.look()
    mine.look()
    assert ([one["id"] for one in hook.got], len(told())) == ([str(notice.key)], 1)


def test_a_webhook_that_is_away_does_not_show_its_address(sender, site, settings):
    settings.REPLSITE_NOTICE_URL, site.problems = f"http://127.0.0.1:{free_port()}/hooks/secret", (BLOCKED,)
    sender().look()
    error = Notice.objects.get().error
    assert error.startswith("webhook: ConnectionRefusedError")
    assert "secret" not in error


def test_a_database_that_is_away_is_told_by_the_process_that_leads(sender, site, hook):
    mine, other = sender(), NoticeSender(site.get)
    site.error = OperationalError("connection refused")
    for _ in range(3):
        mine.look()
        other.look()
    (post,) = hook.got
    assert (post["word"], post["problems"][0]["subject"]) == ("wrong", "the database")
    assert not Notice.objects.exists()
    site.error = None
    mine.look()
    assert [one["word"] for one in hook.got] == ["wrong", "well"]
    assert [str(one.key) for one in Notice.objects.order_by("id")] == [one["id"] for one in hook.got]


def test_a_database_that_hangs_is_told_and_its_lock_is_kept(sender, site, hook, settings):
    settings.REPLSITE_HEALTH_SECONDS = 0.2
    mine = sender()
    release = threading.Event()
    get, site.get = site.get, lambda: release.wait() and get()
    mine._snapshot._work = site.get
    mine.look()
    assert hook.got[0]["sentence"].startswith("The database cannot be read: no answer for")
    assert mine._connection is not None
    release.set()
    wait_until(lambda: mine.look() or len(hook.got) == 2)
    assert hook.got[1]["word"] == "well"


def test_a_defect_does_not_end_the_thread(sender, site, hook):
    site.error, site.problems = RuntimeError("a defect"), (BLOCKED,)
    mine = sender()
    mine._step_seconds = 0.05
    mine.start()
    try:
        wait_until(lambda: mine._paused.is_on)
        site.error = None
        wait_until(lambda: hook.got)
    finally:
        mine.stop()


def test_without_a_channel_nothing_runs(sender, settings):
    settings.REPLSITE_NOTICE_MAIL, settings.REPLSITE_NOTICE_URL = (), ""
    mine = sender()
    mine.start()
    assert not mine._thread.is_alive()
    mine.stop()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REPLSITE_NOTICE_URL", "file:///etc/passwd"),
        ("REPLSITE_NOTICE_LINK", "ops.example.org"),
        ("REPLSITE_NOTICE_MAIL", ["ops"]),
    ],
)
def test_settings_that_cannot_be_used_are_told(settings, name, value):
    setattr(settings, name, value)
    assert any(name in one.msg for one in run_checks() if one.id == "replsite.E002")


def test_a_serving_process_tells_of_a_blocked_stream(hook, start_manage, tmp_path):
    """The whole way, with settings of the environment."""
    environment = {
        "REPLSITE_NOTICE_URL": hook.url, "REPLSITE_NOTICE_MAIL": "ops@example.org", "REPLSITE_MAIL_URL": f"file://{tmp_path}",
        "REPLSITE_BLOCKED_AFTER_SECONDS": "0.5", "REPLSITE_NOTICE_AFTER_SECONDS": "0",
        "REPLSITE_NOTICE_WELL_AFTER_SECONDS": "1",
    }  # fmt: skip
    start_manage("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0", env=environment)
    with held_open():
        wait_until(lambda: hook.got)
    wait_until(lambda: len(hook.got) == 2)
    assert [one["word"] for one in hook.got] == ["wrong", "well"]
    assert "caches is blocked" in json.dumps(hook.got[0])
    assert any(b"caches is blocked" in file.read_bytes() for file in tmp_path.iterdir())
    connections.close_all()


# --- channels that misbehave -------------------------------------------------------------------------------------------


@contextmanager
def raw_server(answer):
    """A server in a thread: ``answer`` gets each connection. Yields its port."""
    stopping = threading.Event()

    def serve():
        while not stopping.is_set():
            with suppress(OSError):
                client, _ = listener.accept()
                threading.Thread(target=talk, args=(client,), daemon=True).start()

    def talk(client):
        with client, suppress(OSError):
            answer(client, stopping)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            stopping.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def garbage(client, _):
    client.recv(65536)
    client.sendall(b"this is no HTTP\r\n\r\n")


def drip(begin):
    def answer(client, stopping):
        client.recv(65536) if begin.startswith(b"HTTP") else None
        client.sendall(begin)
        while not stopping.wait(0.02):
            client.sendall(b"250-x\r\n" if begin.startswith(b"220") else b"x")

    return answer


def test_a_webhook_that_answers_garbage_is_tried_later_and_the_mail_is_not_sent_again(sender, site, told, settings):
    site.problems, mine = (BLOCKED,), sender()
    with raw_server(garbage) as port:
        settings.REPLSITE_NOTICE_URL = f"http://127.0.0.1:{port}/"
        for _ in range(3):
            mine.look()
    assert len(told()) == 1
    notice = Notice.objects.get()
    assert (notice.waiting, notice.attempts, notice.error) == (["webhook"], 1, "webhook: BadStatusLine")


def test_a_mail_backend_with_errors_of_its_own_does_not_keep_the_webhook_from_it(sender, site, hook, settings):
    settings.EMAIL_BACKEND, site.problems = f"{__name__}.BrokenBackend", (BLOCKED,)
    mine = sender()
    for _ in range(3):
        mine.look()
    assert [one["word"] for one in hook.got] == ["wrong"]
    notice = Notice.objects.get()
    assert (notice.waiting, notice.attempts, notice.error) == (["mail"], 1, "mail: Broken: no such key")


class Broken(Exception):
    pass


class BrokenBackend:
    def __init__(self, **_):
        pass

    def send_messages(self, _):
        raise Broken("no such key")


@pytest.mark.parametrize("channel", ["mail", "webhook"])
def test_a_channel_that_drips_ends_in_time(sender, site, settings, monkeypatch, channel):
    monkeypatch.setattr(senders, "LONGEST_SECONDS", 0.5)
    site.problems, mine = (BLOCKED,), sender()
    begin = {"mail": b"220-x\r\n", "webhook": b"HTTP/1.1 200 OK\r\nX: "}[channel]
    with raw_server(drip(begin)) as port:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", port
        settings.REPLSITE_NOTICE_MAIL = ["ops@example.org"] if channel == "mail" else []
        settings.REPLSITE_NOTICE_URL = f"http://127.0.0.1:{port}/" if channel == "webhook" else ""
        looking = threading.Thread(target=mine.look)
        looking.start()
        looking.join(10)
        assert not looking.is_alive()
    assert Notice.objects.get().waiting == [channel]
    wait_until(mine._sent[channel][1].done)


def test_a_message_that_was_taken_late_is_not_sent_again(sender, site, hook, monkeypatch):
    monkeypatch.setattr(senders, "LONGEST_SECONDS", 0.05)
    hook.may_answer.clear()
    site.problems, mine = (BLOCKED,), sender()
    mine.look()
    assert Notice.objects.get().error.startswith("webhook: no answer for")
    site.problems = ()
    mine.look()
    hook.may_answer.set()
    wait_until(mine._sent["webhook"][1].done)
    Notice.objects.update(tried_at=Now() - senders.GIVEN_UP_AFTER / 100)
    wait_until(lambda: mine.look() or len(hook.got) == 2)
    assert [one["word"] for one in hook.got] == ["wrong", "well"]


def test_messages_come_in_their_order_and_one_that_is_refused_for_ever_holds_nothing_up(sender, site, hook):
    site.problems, hook.status, mine = (BLOCKED,), 503, sender()
    mine.look()
    site.problems, hook.status = (), 200
    mine.look()
    assert hook.got == [], "the earlier one is not due yet"
    Notice.objects.update(tried_at=Now() - senders.GIVEN_UP_AFTER / 100)
    mine.look()
    assert [one["word"] for one in hook.got] == ["wrong", "well"]
    site.problems, hook.status = (BLOCKED,), 413
    mine.look()
    site.problems, hook.status = (), 200
    mine.look()
    assert [one["word"] for one in hook.got] == ["wrong", "well", "well"]
    assert Notice.objects.filter(error="webhook: it answered 413", waiting=[]).count() == 1


def test_a_message_that_fails_for_long_holds_later_ones_up_no_more(sender, site, hook):
    site.problems, hook.status, mine = (BLOCKED,), 503, sender()
    mine.look()
    Notice.objects.update(at=Now() - senders.HOLDS_FOR)
    site.problems, hook.status = (), 200
    mine.look()
    assert [one["word"] for one in hook.got] == ["well"]


def test_names_in_a_message_have_no_lines_of_their_own(sender, site, told, hook):
    site.problems, mine = (Problem("Reader x\n* all is well", BLOCKED.verdict),), sender()
    mine.look()
    (mail,), (post,) = told(), hook.got
    assert "\n* all is well" not in mail.get_content() + post["text"]


def test_names_in_a_chat_call_nobody_and_hide_no_address(sender, site, told, hook):
    given = "<!channel> <users/all> @here @channel <https://evil.test|click> [click](https://evil.test) @ann:site.test"
    site.problems, mine = (Problem(given, Verdict("failed", Severity.WRONG, f"ValueError: {given}")),), sender()
    mine.look()
    (mail,), (post,) = told(), hook.got
    assert [sign for sign in ("<", ">", "@here", "@channel", "@ann", "](") if sign in post["text"]] == []
    assert "https://ops.example.org/admin/live/" in post["text"]
    assert post["problems"][0]["subject"] == given
    assert given in mail.get_content()
