"""A server, a follower, a handler and pages that append are attached while the database fails over to a standby."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.db import connection

from tests.conftest import end_processes
from tests.deployment.copied import BACKUP, STANDBY, Copy
from tests.deployment.followed import Followed
from tests.support.effects import TABLE, effects_table
from tests.support.proxy import Proxy
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.warm_start import WARM
from tests.support.wire_client import ready_ports

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.scenario]


class Appending(threading.Thread):
    """Asks a page again and again to append; keeps the tokens that were acknowledged."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.tokens: list[int] = []
        self._going, self._resting, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._going.set()
        self._url = f"http://127.0.0.1:{port}/append?name=n"

    def run(self) -> None:
        while not self._ended.wait(0.01):
            if not self._going.is_set():
                self._resting.set()
                continue
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(self._url, method="POST"), timeout=DEADLINE_SECONDS
                ) as answer:
                    self.tokens.append(int(json.load(answer)["token"]))
            except (urllib.error.URLError, OSError, ValueError):
                continue  # the database is away, or the answer was lost: nothing is known of that fact

    def pause(self) -> None:
        """Wait until no request is under way, and send none."""
        self._resting.clear()
        self._going.clear()
        assert self._resting.wait(DEADLINE_SECONDS)

    def go_on(self) -> None:
        """Send requests again."""
        self._going.set()

    def end(self) -> None:
        """Send no more, for good."""
        self._ended.set()
        self.join(DEADLINE_SECONDS)


class Scene:
    """Processes that reach the database by one address; behind it first the primary, then a promoted standby."""

    def __init__(self, folder: Path, database_url: str, env: dict[str, str]) -> None:
        where = connection.settings_dict
        self.folder = folder
        self.address, self.replication = Proxy(int(where["PORT"])), Proxy(int(where["PORT"]))
        self.address.start()
        self.replication.start()
        self.env = {
            **os.environ, "DATABASE_URL": database_url.replace(f":{where['PORT']}/", f":{self.address.port}/"),
            "DJANGO_SETTINGS_MODULE": "tests.deployment.writing_site", "REPLSITE_WRITER": "page-{n}", **env,
        }  # fmt: skip
        self.standby: Copy | None = None
        self.appending: Appending | None = None
        self.started: list[subprocess.Popen[str]] = []

    def make_standby(self) -> None:
        """Start one that follows the primary."""
        self.standby = Copy(self.folder, STANDBY)
        self.standby.say(
            f"primary_conninfo = 'host=127.0.0.1 port={self.replication.port} user={self.standby.role} "
            f"password={connection.settings_dict['PASSWORD']}'\n"
        )
        self.standby.start()

    def begin(self) -> None:
        """Start all processes, and wait until they serve."""
        self.ports = ready_ports(self.start("serve", "--http", "127.0.0.1:0", "--replication", "127.0.0.1:0"))
        self.start("-m", "tests.support.handler_process", "never", str(self.folder), "runhandlers", "r")
        self.followed = self.follow()
        self.appending = Appending(self.ports["http"])
        self.appending.start()

    def follow(self) -> Followed:
        """Start a follower from the beginning."""
        where = f"tcp://127.0.0.1:{self.ports['replication']}"
        self.follower = self.start("follow", where, "--streams", "caches", "--from", "caches=1", "--json")
        return Followed(self.follower)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = WARM.popen(arguments, self.env, stdout=subprocess.PIPE)
        self.started.append(process)
        return process

    def standby_has(self, token: int) -> bool:
        with self.standby.session() as cursor:
            cursor.execute("SELECT max(stream_id) FROM streams_cacheinvalidation")
            return (cursor.fetchone()[0] or 0) >= token

    def fail_over(self) -> None:
        """The primary's host is lost; the standby is promoted, and the address leads to it."""
        self.address.refuse()
        self.address.cut()
        self.replication.refuse()
        self.replication.cut()
        self.standby.promote()
        self.address.send_to(self.standby.port)
        self.address.refuse(False)

    def restore(self) -> None:
        """The primary is lost; a server that is made of the backup, and lacks what came after it, takes its address."""
        self.address.refuse()
        self.address.cut()
        (self.standby.data / "recovery.signal").touch()
        self.standby.say(
            "restore_command = 'false'\nrecovery_target = 'immediate'\nrecovery_target_action = 'promote'\n"
        )
        self.standby.start()
        wait_until(lambda: not self.standby.ask("SELECT pg_is_in_recovery()"), what="the backup is the primary")
        self.address.send_to(self.standby.port)
        self.address.refuse(False)

    def works(self) -> None:
        """Wait until the handler works, and the standby has its effects. Says how far each part came if that takes long."""
        try:
            wait_until(
                lambda: len(self.effects()) >= 20, 2 * DEADLINE_SECONDS, "the handler works, and the standby has it"
            )
        except AssertionError as error:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT count(*) FROM {TABLE}")
                handled = cursor.fetchone()[0]
                cursor.execute("SELECT stream, instance_name, position, state FROM streams_streamposition")
                positions = cursor.fetchall()
                cursor.execute(
                    "SELECT application_name, state, wait_event, query FROM pg_stat_activity "
                    "WHERE datname = current_database() OR backend_type = 'walsender'"
                )
                sessions = cursor.fetchall()
            ended = [process.poll() for process in self.started]
            told = (
                f"{len(self.appending.tokens)} appended, {handled} handled, processes {ended}, {positions}, {sessions}"
            )
            raise AssertionError(f"{error}; {told}") from None

    def goes_on(self) -> None:
        """Wait until pages append again, then let them end."""
        before = len(self.appending.tokens)
        wait_until(lambda: len(self.appending.tokens) >= before + 40, 2 * DEADLINE_SECONDS, "pages append again")
        self.appending.end()

    def facts(self) -> list[int]:
        with self.standby.session() as cursor:
            cursor.execute("SELECT stream_id FROM streams_cacheinvalidation ORDER BY 1")
            return [row[0] for row in cursor.fetchall()]

    def effects(self) -> list[int]:
        with self.standby.session() as cursor:
            cursor.execute(f"SELECT token FROM {TABLE} WHERE reader = 'r' ORDER BY number")
            return [row[0] for row in cursor.fetchall()]

    def end(self) -> None:
        if self.appending is not None:
            self.appending.end()
        try:
            end_processes(self.started)
        finally:
            if self.standby is not None:
                self.standby.stop()
            self.replication.stall(False)
            self.address.stop()
            self.replication.stop()


@pytest.fixture
def make_scene(tmp_path: Path, database_url: str) -> Iterator[Callable[..., Scene]]:
    """``make_scene(**environment)``: a scene, ended with the test."""
    with effects_table(), ExitStack() as until_the_end:
        until_the_end.callback(shutil.rmtree, tmp_path, ignore_errors=True)

        def make(*, standby: bool = True, **env: str) -> Scene:
            scene = Scene(tmp_path, database_url, env)
            until_the_end.callback(scene.end)
            if standby:
                scene.make_standby()
            scene.begin()
            return scene

        yield make


def test_with_a_synchronous_standby_everything_goes_on_by_itself(make_scene):
    scene = make_scene(REPLSITE_FAILOVER_KEEPS_EPOCH="true")
    scene.works()
    scene.appending.pause()  # what is acknowledged has reached the standby, as a synchronous one promises
    wait_until(lambda: scene.standby_has(scene.appending.tokens[-1]))
    scene.appending.go_on()
    scene.fail_over()
    scene.goes_on()
    facts = scene.facts()
    wait_until(lambda: scene.effects() == facts, what="each fact has one effect, in order")
    wait_until(lambda: scene.followed.tokens == facts, what="the follower has each fact, once and in order")


def test_ids_that_are_given_out_again_reach_everybody_as_the_new_facts(make_scene):
    scene = make_scene()
    wait_until(lambda: len(scene.effects()) >= 10, 2 * DEADLINE_SECONDS)
    scene.replication.stall()
    kept = len(scene.appending.tokens)
    wait_until(lambda: len(scene.appending.tokens) >= kept + 200, 2 * DEADLINE_SECONDS)
    reached = scene.appending.tokens[-1]
    wait_until(lambda: scene.followed.tokens and scene.followed.tokens[-1] >= reached)
    scene.fail_over()
    scene.goes_on()
    assert scene.appending.tokens[-30] <= reached, "IDs are given out again"
    facts = scene.facts()
    wait_until(lambda: scene.effects() == facts, what="each fact has one effect, in order")
    assert scene.follower.wait(DEADLINE_SECONDS) == 2, "a follower that keeps its place ends: it has to begin anew"
    anew = scene.follow()
    wait_until(lambda: anew.tokens == facts, what="a follower that begins anew has each fact")


def test_a_backup_that_is_restored_under_them_is_a_new_epoch_to_everybody(make_scene):
    """Facts since the backup are lost, also those that the handler and the follower have; their IDs are given out again."""
    scene = make_scene(standby=False)
    wait_until(lambda: len(scene.appending.tokens) >= 20 and scene.followed.tokens, 2 * DEADLINE_SECONDS)
    scene.standby = Copy(scene.folder, BACKUP)
    kept = len(scene.appending.tokens)
    wait_until(lambda: len(scene.appending.tokens) >= kept + 100, 2 * DEADLINE_SECONDS)
    reached = scene.appending.tokens[-1]
    wait_until(lambda: scene.followed.tokens[-1] >= reached)
    scene.restore()
    assert scene.facts()[-1] < reached, "the backup lacks facts"
    scene.goes_on()
    facts = scene.facts()
    assert set(scene.appending.tokens[-30:]) <= set(facts), "what was acknowledged since is there"
    wait_until(lambda: scene.effects() == facts, what="each fact has one effect, in order")
    assert scene.follower.wait(DEADLINE_SECONDS) == 2, "a follower that keeps its place ends: it has to begin anew"
    anew = scene.follow()
    wait_until(lambda: anew.tokens == facts, what="a follower that begins anew has each fact")
