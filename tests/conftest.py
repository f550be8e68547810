"""What every test may ask for.

Databases: ask for ``db`` (or mark ``django_db``) when the test's changes may stay in one transaction that is rolled
back. Streams announce and complete at *commit*, so their tests want real ones: mark ``django_db(transaction=True)``
or the fixture ``transactional_db``; tables are emptied afterwards. Other processes see the test's rows only that way.
Unit tests ask for neither, and then no server is started.

Processes: ``run_manage("check_streams", "--json")`` runs a command to its end on the test database; ``start_manage``
starts one that is ended with the test. ``wait_until`` is how tests wait; ``free_port`` is a port for a listener.

Nothing may be left behind: living children and files in the temporary folder at the end of the session, descriptors at the end
of a module (``tests.support.left_open``). The section *left behind* tells what is, and the run fails; no test does.
A test whose program cannot be had is skipped with the reason ``no PROGRAM here: …``; any other skip fails with ``CI=true``.
What measures speed (``speed``) or memory (``memory``) and what takes long (``scenario``) is for ``script/test --all``; ``-m ""``
takes all of what is named.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest
import pytest_django
from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.db.backends.postgresql.psycopg_any import is_psycopg3

from tests.support import ports
from tests.support import session as test_session
from tests.support.again import Failure, ProcessStarts, may_run_again, write_verdict
from tests.support.effort import load_profiles
from tests.support.emptying import delete_rows, empty_tables, leave_tables_alone
from tests.support.left_open import LeftOpen
from tests.support.static_files import list_static_files_once
from tests.support.waiting import wait_until as wait_until_function
from tests.support.warm_start import WARM, close_all, cold_start

gc.disable()  # until all tests are collected; what is imported stays
SESSION_FOLDER = test_session.enter()
os.environ["DJANGO_SETTINGS_MODULE"] = "replsite.settings"
# Loads the settings now, in the environment of the session.
assert str(settings.REPLSITE_DATA_DIR) == os.environ["REPLSITE_DATA_DIR"], "the settings were loaded too early"
#: Half a second for each user that logs in; other processes read the number from the hash.
PBKDF2PasswordHasher.iterations = 1
load_profiles()
list_static_files_once()
LEFT_OPEN = LeftOpen()
STARTS = ProcessStarts()
#: What this process's tests left behind, and in the controller what those of all did.
LEFT_BEHIND: list[str] = []

#: Other processes use the same driver, since they have the same PYTHONPATH.
DRIVER = "psycopg" if is_psycopg3 else "psycopg2"
if (wanted := os.environ.get("REPLSITE_TEST_DRIVER", DRIVER)) != DRIVER:
    raise pytest.UsageError(f"REPLSITE_TEST_DRIVER={wanted}, but Django uses {DRIVER}: script/test --driver {wanted}")
SLOWEST_FILES = 60
IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
FOLDERS = (
    "unit", "properties", "protocol", "docs", "integration", "oracle", "deployment", "acceptance", "torture", "pipeline",
)  # fmt: skip
#: What pytest-django does around each test for mail, other URLs, sites and the like, which no test here has: half of the time
#: of a small test. It has nothing to do instead, once.
_SPARED = (
    "_dj_autoclear_mailbox", "_django_set_urlconf", "_django_isolate_apps", "_template_string_if_invalid_marker",
    "_django_clear_site_cache", "_live_server_helper", "_django_setup_unittest",
)  # fmt: skip
globals().update({name: pytest.fixture(scope="session", autouse=True)(lambda: None) for name in _SPARED})
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


def pytest_configure(config: pytest.Config) -> None:
    """Started in a shell's background, a process ignores SIGINT, and so would all that it starts."""
    config.pluginmanager.register(_ToldAtOnce(config), "failures told at once")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _ToldAtOnce:
    """Names a failure when it happens: the summary comes after twenty minutes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")  # the workers of xdist have none
        if report.failed and terminal is not None:
            *_, reason = [line for line in report.longreprtext.splitlines() if line.startswith("E ")] or [""]
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}) {reason[:200]}", red=True)


def pytest_report_header() -> str:
    """The driver that the tests run on."""
    return f"database driver: {DRIVER}"


def pytest_unconfigure(config: pytest.Config) -> None:
    """The controller removes the session's folder."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        test_session.leave(SESSION_FOLDER)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Starts one Spark session instead of one in each process."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.distribution import FilesAndFolders

    return FilesAndFolders(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """A worker begins as its controller did: if the settings were named, pytest-django would load those of the controller's
    folder, and so its server, before this module has chosen the worker's."""
    os.environ.pop("DJANGO_SETTINGS_MODULE", None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """The controller gathers what its workers tell."""
    LEFT_BEHIND.extend(getattr(node, "workeroutput", {}).get("left_behind", []))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """After every fixture that owns a process or a file; before a worker of pytest-xdist sends its output."""
    yield
    close_all()
    gc.collect()  # what waits in cycles may own a file
    processes, files = test_session.left_behind()
    LEFT_BEHIND.extend([*(f"process {one}" for one in processes), *(f"temporary file {one}" for one in files)])
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left_behind"] = LEFT_BEHIND
    elif LEFT_BEHIND and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The quickest folder first; within a folder the order of pytest-django, which puts transactional tests last.

    Where several processes share the work the slowest folder is first, so that none of them is left alone with it.
    """
    folders = FOLDERS[::-1] if "PYTEST_XDIST_WORKER" in os.environ else FOLDERS
    items.sort(
        key=lambda item: folders.index(folder) if (folder := _folder_of(item.nodeid)) in folders else len(folders)
    )


def _folder_of(nodeid: str) -> str:
    """``tests/unit/pipeline/test_x.py::test_y`` -> ``unit``."""
    return nodeid.removeprefix("tests/").partition("/")[0]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was left behind and what could not be had; in CI, the time of each folder and of the slowest files."""
    if LEFT_BEHIND:
        terminalreporter.section("left behind", red=True)
        terminalreporter.write("".join(f"{line}\n" for line in LEFT_BEHIND))
    stats = terminalreporter.stats
    if skipped := len(stats.get("skipped", [])):
        terminalreporter.write_line(f"{skipped} tests skipped; the reasons are above")
    failed = [*stats.get("failed", []), *stats.get("error", [])]
    top = terminalreporter.config.rootpath
    told = [
        Failure(one.nodeid, f"{top}/{one.nodeid}", getattr(one, "again", False), one.longreprtext) for one in failed
    ]
    write_verdict(told, other=bool(LEFT_BEHIND))
    if not IN_CI:
        return
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    of_files: Counter[str] = Counter()
    for reports in stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[_folder_of(report.nodeid)] += report.duration
                tests[_folder_of(report.nodeid)] += report.when == "call"
                of_files[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section("time of each folder")
    for folder, taken in seconds.most_common():
        terminalreporter.write_line(f"{taken:7.1f} s  {tests[folder]:5d} tests  {folder}")
    terminalreporter.section("slowest files")
    for file, taken in of_files.most_common(SLOWEST_FILES):
        terminalreporter.write_line(f"{taken:7.1f} s  {file}")


def pytest_collection_finish() -> None:
    """To look for garbage in all modules and tests again and again would take a third of the unit tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """A descriptor left by each test of a large module would use up those of the process, tests later."""
    yield
    is_last = nextitem is None or nextitem.path != item.path
    if said := LEFT_OPEN.after_test(item.name, is_last_of_module=is_last):
        LEFT_BEHIND.append(f"{item.nodeid.partition('::')[0]}: {said}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Processes that start from here on are those of the test's module."""
    STARTS.module = item.nodeid.partition("::")[0]
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skip that is not about a program hides something in CI."""
    report = _skip_fails((yield))
    if report.failed:
        report.again = may_run_again(item, STARTS)  # type: ignore[attr-defined]
    # A report with half a character, that a test wrote or logged, cannot be sent: the whole run would end there.
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself."""
    return _skip_fails((yield))


def _skip_fails(report: Any) -> Any:
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if reason.removeprefix("Skipped: ").startswith("no ") and " here" in reason:
            return report
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: skipped, which is a failure with CI=true. {reason}"
    return report


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker) -> Iterator[None]:
    """The test database; a transactional test leaves it empty by our way, in a twentieth of the time that Django's takes."""
    from django.test import TransactionTestCase

    from tests.support.writing import stop_looking

    def tear_down(test: TransactionTestCase) -> None:
        stop_looking()
        delete_rows()

    TransactionTestCase._fixture_teardown = tear_down
    with django_db_blocker.unblock():
        leave_tables_alone()
    STARTS.forget()  # the session's server is not the module's
    yield
    stop_looking()


@pytest.fixture
def new_tables(db: None) -> None:
    """All tables as the migrations left them, for a test of a query's plan (``tests.support.emptying`` tells why)."""
    empty_tables()


@pytest.fixture
def positions_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that the test puts into the table stay as they are: nobody in this process looks, and raises them."""
    monkeypatch.setattr("streams.reading.looker.join", lambda _using, _listener: None)
    for place in ("streams.reading.looker", "streams.waiting.current"):
        monkeypatch.setattr(f"{place}.look_now", lambda _using, **_: False)


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    """``wait_until(condition, seconds=60)``: the first true value, or the test fails."""
    return wait_until_function


@pytest.fixture
def free_port() -> int:
    """A port of 127.0.0.1 for a listener (``tests.support.ports``)."""
    return ports.free_port()


@pytest.fixture(scope="session")
def url_of_test_database(django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker) -> str:
    """What ``database_url`` is, for what a module makes once: a schema of its own. Servers belong to a test each: what they
    write while the tables are emptied behind a test is in the next one's way."""
    from django.db import connection

    with django_db_blocker.unblock():
        connection.ensure_connection()
    where = connection.settings_dict
    user, password = quote(where["USER"], safe=""), quote(where["PASSWORD"], safe="")
    return f"postgres://{user}:{password}@{where['HOST']}:{where['PORT']}/{quote(where['NAME'])}"


@pytest.fixture
def database_url(transactional_db: None, url_of_test_database: str) -> str:
    """``DATABASE_URL`` of the test database, for other processes."""
    return url_of_test_database


@pytest.fixture
def popen_manage(request: pytest.FixtureRequest, database_url: str) -> Callable[..., subprocess.Popen[str]]:
    """``popen_manage(arguments, env, **more)``: start ``manage.py`` on the test database; ``more`` is Popen's."""
    popen = cold_start if request.node.get_closest_marker("cold_start") else WARM.popen

    def start(arguments: tuple[str, ...], env: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
        return popen(arguments, {**os.environ, "DATABASE_URL": database_url, **(env or {})}, **more)

    return start


@pytest.fixture
def run_manage(popen_manage: Callable[..., subprocess.Popen[str]]) -> Run:
    """``run_manage(*arguments, timeout=120, env={}, input=None)``: run ``manage.py`` on the test database to its end."""

    def run(
        *arguments: str,
        timeout: float = 120.0,
        env: dict[str, str] | None = None,
        input: str | None = None,
        **more: Any,
    ) -> subprocess.CompletedProcess[str]:
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        if input is not None:
            more["stdin"] = subprocess.PIPE
        with popen_manage(arguments, env, **more) as process:
            try:
                out, err = process.communicate(input, timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


@pytest.fixture
def start_manage(popen_manage: Callable[..., subprocess.Popen[str]]) -> Iterator[Start]:
    """``start_manage(*arguments, env={})``: start ``manage.py`` on the test database; ended with the test.

    Its children end too. Its stdout is a pipe of text lines; stderr goes to the test's own.
    """
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
        process = popen_manage(arguments, env, **{"stdout": subprocess.PIPE, **more})
        started.append(process)
        return process

    yield start
    end_processes(started)


def end_processes(processes: Iterable[subprocess.Popen[str]], seconds: float = 60.0) -> None:
    """Ask processes to end, one after another, then make them and what they started end.

    Raises ``AssertionError`` at the end if one of them had to be killed.
    """
    killed = []
    for process in processes:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                killed.append(process.args)
        with suppress(ProcessLookupError):  # the usual case: nothing of its group is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    assert not killed, f"did not end within {seconds:.0f} s of SIGTERM: {killed}"
