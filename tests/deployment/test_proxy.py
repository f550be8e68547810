"""The real nginx with the page's configuration before two servers: who gets in, as whom, and what a restart costs."""

from __future__ import annotations

import gzip
import re
import socket
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.deployment.followed import Followed
from tests.deployment.proxied import NAME, NGINX, Browser, Nginx
from tests.deployment.proxied_site import PASSWORD, ProxiedSite
from tests.support.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.skipif(NGINX is None, reason="no nginx here: Debian's package nginx")


@pytest.fixture(scope="module")
def proxied(production) -> Iterator[ProxiedSite]:
    with TemporaryDirectory() as name:
        site = ProxiedSite(production, Path(name))
        try:
            site.start()
            yield site
        finally:
            site.stop()


@pytest.fixture
def browser(proxied: ProxiedSite) -> Browser:
    return Browser(proxied.nginx)


def test_nginx_takes_the_configuration(tmp_path):
    checked = Nginx(tmp_path, [1, 2]).check()
    assert checked.returncode == 0, checked.stderr
    assert "warn" not in checked.stderr


def test_the_live_page_is_asked_for_again_and_again_and_stays_out_of_the_log(browser, proxied):
    browser.log_in(proxied.operator, PASSWORD)
    answer, body = browser.ask("/admin/live/")
    assert answer.status == 200 and b"/static/" in body

    def is_known() -> bool:
        found, page = browser.ask("/admin/live/data/", Accept_Encoding="gzip")
        assert found.headers["Content-Encoding"] == "gzip" and b"caches" in gzip.decompress(page)
        again, nothing = browser.ask("/admin/live/data/", If_None_Match=found.headers["ETag"])
        assert again.headers["As-Of"] >= found.headers["As-Of"]
        return (again.status, nothing) == (304, b"")

    wait_until(is_known, what="nothing changed between two questions")
    log = proxied.nginx.folder / "access.log"
    browser.ask("/client?last")
    wait_until(lambda: "/client?last" in log.read_text(), what="nginx has logged the request")
    assert "/admin/live/ " in log.read_text() and "/admin/live/data/" not in log.read_text()


def test_a_viewer_stays_with_one_server(browser, proxied):
    """Each server judges by what it saw itself: the page would show one and the other in turn."""

    def answers(port: int) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_SECONDS) as answer:
            found = re.findall(
                rb'^django_http_requests_total_by_view_\w+_total{[^}]*view="live-data"} (\S+)$',
                answer.read(),
                re.MULTILINE,
            )
        return sum(map(float, found))

    browser.log_in(proxied.operator, PASSWORD)
    before = [answers(port) for port in proxied.http]
    for _ in range(10):
        assert browser.ask("/admin/live/data/")[0].status == 200
    assert sorted(answers(port) - had for port, had in zip(proxied.http, before, strict=True)) == [0, 10]


def test_cookies_are_for_https_only_and_browsers_are_told(browser, proxied):
    browser.log_in(proxied.operator, PASSWORD)
    assert browser.cookies["sessionid"]["secure"] and browser.cookies["csrftoken"]["secure"]
    answer, _ = browser.ask("/admin/live/")
    assert "max-age=31536000" in answer.headers["Strict-Transport-Security"]


@pytest.mark.parametrize(
    "path", ["/metrics", "/health", "/health/ready", "/_synapse/replication/get_repl_stream_updates/caches/1"]
)
def test_what_is_for_machines_nearby_is_closed(browser, path):
    answer, _ = browser.ask(path)
    assert answer.status == 403


@pytest.mark.parametrize("path", ["//metrics", "/./metrics", "/%6detrics", "/health/../metrics", "/metrics/"])
def test_no_other_spelling_opens_it(browser, path):
    answer, body = browser.ask(path)
    assert answer.status in (403, 404) and b"replsite_" not in body


def test_no_root_of_a_client_opens_it(browser):
    for path in ("/metrics", "/health"):
        answer, _ = browser.ask(f"/x{path}", Daphne_Root_Path="/x")
        assert answer.status == 404


def test_the_servers_themselves_answer_machines_nearby(proxied, browser):
    def answered(path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{proxied.http[0]}/{path}", timeout=DEADLINE_SECONDS) as answer:
            return answer.read()

    browser.ask_json("/append?name=seen", "POST")
    # A scrape may share a snapshot of up to 0.9 s before, such as the history's: no writer had a position then.
    wait_until(lambda: b"replsite_stream_position" in answered("metrics"), what="the scrape shows positions")
    assert b'"well": true' in answered("health/ready")


def test_whether_the_site_lives_may_be_asked_from_outside(browser):
    assert browser.ask("/health/live")[0].status == 200


def test_the_client_is_the_one_that_the_proxy_saw(browser, proxied):
    seen = browser.ask_json("/client", X_Forwarded_For="203.0.113.7", X_Forwarded_Proto="http")
    assert seen == {"client": "127.0.0.1", "secure": True, "host": NAME}
    log = proxied.nginx.folder / "access.log"  # nginx writes the line after it has sent the answer
    wait_until(lambda: '"GET /client HTTP/1.1" 200' in log.read_text(), what="nginx has logged the request")


def test_a_large_body_is_refused_before_the_site_sees_it(browser):
    answer, body = browser.ask("/append?name=large", "POST", b"x" * 1_100_000)
    assert answer.status == 413 and b"nginx" in body


def test_static_files_come_from_the_folder_with_an_age(browser):
    answer, body = browser.ask("/static/unfold/css/styles.css")
    assert answer.status == 200 and answer.headers["Cache-Control"] == "max-age=3600" and len(body) > 1000


def test_plain_http_is_sent_to_https(proxied):
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", proxied.nginx.plain_port, timeout=DEADLINE_SECONDS)
    connection.request("GET", "/admin/live/", headers={"Host": NAME})
    answer = connection.getresponse()
    connection.close()
    assert (answer.status, answer.headers["Location"]) == (301, f"https://{NAME}/admin/live/")


def test_a_name_that_is_not_ours_is_refused(browser):
    assert browser.ask("/admin/login/", Host="elsewhere.example.org")[0].status == 400


def test_somebody_who_tries_passwords_is_held_up(browser):
    assert browser.ask("/admin/login/")[0].status == 200
    # 20 at once, and one in two seconds: which of the later ones is let in is chance.
    wait_until(lambda: browser.ask("/admin/login/")[0].status == 429, what="a look at the login is refused")


# --- a rolling restart --------------------------------------------------------------------------------------------


class Load:
    """Appends through the proxy, one request after the other, in threads; what was answered."""

    def __init__(self, browser: Browser, threads: int = 3) -> None:
        self._browser = browser
        self._stopping = threading.Event()
        self.tokens: list[int] = []
        self.failed: list[str] = []
        self.processes: list[int] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        while not self._stopping.is_set():
            try:
                said = self._browser.ask_json(f"/append?name=rolling-{number}", "POST")
            except (OSError, AssertionError) as error:
                self.failed.append(repr(error))
                continue
            self.tokens.append(said["token"])
            self.processes.append(said["process"])


def test_a_server_that_is_told_to_stop_answers_what_it_was_asked_and_takes_nothing_new(proxied, site):
    asked = urllib.request.Request(f"http://127.0.0.1:{proxied.http[0]}/slow", headers={"Host": NAME})
    asked.add_header("X-Forwarded-Proto", "https")
    answers: list[bytes] = []

    def ask() -> None:
        with urllib.request.urlopen(asked, timeout=DEADLINE_SECONDS) as answer:
            answers.append(answer.read())

    thread = threading.Thread(target=ask)
    with site.session() as cursor, site.session() as look:
        cursor.execute("SELECT pg_advisory_lock(4711)")
        thread.start()
        wait_until(lambda: waiting(look), what="the page waits")
        proxied.servers[0].terminate()
        wait_until(lambda: not accepts(proxied.http[0]), what="no new connection is taken")
        assert thread.is_alive() and proxied.servers[0].poll() is None
    thread.join(DEADLINE_SECONDS)
    assert answers == [b'{"answered": true}']
    assert proxied.servers[0].wait(DEADLINE_SECONDS) == 0
    proxied.restart(0)


def waiting(cursor) -> bool:
    cursor.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    return bool(cursor.fetchone()[0])


def accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS):
            return True
    except ConnectionRefusedError:
        return False


def test_two_writers_are_restarted_one_after_the_other_and_nobody_notices(proxied, browser, site):
    """Every request is answered; a follower of the first gets each fact once, in order of each writer."""
    first = browser.ask_json("/append?name=first", "POST")["token"]
    address = f"tcp://127.0.0.1:{proxied.replication[0]}"
    process = site.start(
        "follow", address, "--name", "rolling", "--streams", "caches", "--from", f"caches={first - 1}", "--json"
    )
    followed = Followed(process)
    wait_until(lambda: first in followed.tokens)

    def both_write(load: Load) -> None:
        """By their processes. Names tell nothing: the session of the one that ended may hold its name for a moment more, and then
        the next process takes another number. Several requests each: one that waited to connect while its server was away may
        be answered although nginx still leaves that server out, for two seconds after another one was refused.
        """
        since = len(load.processes)
        wanted = {server.pid for server in proxied.servers}

        def are_asked() -> bool:
            seen = Counter(load.processes[since:])
            return all(seen[process] >= 10 for process in wanted)

        wait_until(lambda: are_asked() or load.failed, 2 * DEADLINE_SECONDS, "both write")

    with Load(browser) as load:
        for number in (0, 1):
            both_write(load)
            proxied.restart(number)
        both_write(load)
    assert load.failed == []
    wait_until(lambda: set(load.tokens) <= set(followed.tokens), what="the follower has every fact")
    assert len(followed.tokens) == len(set(followed.tokens)), "none came twice"
