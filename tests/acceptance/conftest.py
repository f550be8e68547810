"""A browser for a module, a site and an operator for a test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.browsing import ARGUMENTS, CHROMIUM, PASSWORD, Site, driver_fault
from tests.support.letting_go import everything_let_go
from tests.support.session import FOLDER_VARIABLE
from tests.support.waiting import DEADLINE_SECONDS

#: Pictures are no test: ``script/screenshot`` asks for them.
collect_ignore = [] if "REPLSITE_SCREENSHOTS" in os.environ else ["test_pictures.py"]


@pytest.fixture(autouse=True)
def _nothing_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that appends leaves no writer whose row is gone to the next one."""
    with everything_let_go(request):
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright."""
    playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
    if fault := driver_fault():
        pytest.skip(f"no driver of Playwright runs here (Debian: apt-get install libatomic1): {fault}")
    # Playwright's loop runs in this thread, and Django looks for one.
    os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    # Chromium's processes hold files that have a name for a moment only. One that is killed just then, or ends after the browser
    # is closed, leaves its file: in a folder of its own, not in that of the tests, where nothing may be left. Playwright's driver
    # has the folder too: it keeps the browser's profile, in which a process that ends late still writes.
    where = os.environ[FOLDER_VARIABLE]
    with TemporaryDirectory(dir=where, ignore_cleanup_errors=True) as own:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("TMPDIR", own)
            manager = playwright_api.sync_playwright()
            playwright = manager.__enter__()  # starts the driver
        try:
            environment = {**os.environ, "TMPDIR": own}
            found = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, env=environment)
            assert any(entry.name.startswith("playwright") for entry in Path(own).iterdir()), "its profile is there"
            playwright_api.expect.set_options(timeout=DEADLINE_SECONDS * 1000)
            yield found
            found.close()
        finally:
            manager.__exit__(None, None, None)


@pytest.fixture
def site(start_manage, free_port) -> Site:
    """A running site on the test database."""
    return Site(start_manage, free_port)


@pytest.fixture
def boss(transactional_db) -> Any:
    """Somebody who may see everything."""
    from django.contrib.auth.models import User

    return User.objects.create_superuser("boss", password=PASSWORD)


@pytest.fixture
def new_page(browser, site):
    """``new_page(**options)``: a page of a fresh browser context."""
    contexts = []

    def make(**options):
        contexts.append(browser.new_context(base_url=site.address, **options))
        contexts[-1].set_default_timeout(DEADLINE_SECONDS * 1000)
        return contexts[-1].new_page()

    yield make
    for context in contexts:
        context.close()
