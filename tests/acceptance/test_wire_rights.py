"""What a client's certificate may do, as an operator sees it on the live page."""

from __future__ import annotations

import json

import pytest

from streams.models import Reader
from streams.replication.transport.tls import TlsFiles, client_context
from tests.support.browsing import BROWSER, keep, log_in
from tests.support.certificates import Authority
from tests.support.waiting import DEADLINE_SECONDS, wait_until
from tests.support.wire_client import WireClient, ready_ports
from tests.support.writing import append

playwright_api = pytest.importorskip("playwright.sync_api", reason="no playwright here")
pytestmark = BROWSER
RIGHTS = {"sender1": {"names": ["{certificate}"], "streams": ["caches", "federation"], "reports": ["FEDERATION_ACK"]}}
SCREENS = {
    "desktop": {"viewport": {"width": 1440, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
}
ALLOWED = "calls itself sender1 · follows caches, federation · reports FEDERATION_ACK"
REFUSED = "1 command refused, the last one because it may not acknowledge for sender2."


@pytest.fixture
def sender(transactional_db, tmp_path, start_manage):
    """A connected client whose certificate may do little, and that asked for more."""
    append()
    authority = Authority(tmp_path)
    certificate, key = authority.sign("server", server=True)
    files = ["--tls-certificate", certificate, "--tls-key", key, "--tls-client-ca", str(authority.file)]
    env = {"REPLSITE_WIRE_RIGHTS": json.dumps(RIGHTS)}
    port = ready_ports(start_manage("runreplication", "--bind", "127.0.0.1:0", *files, env=env))["replication"]
    client = WireClient(port)
    client.socket.settimeout(DEADLINE_SECONDS)
    context = client_context(TlsFiles(*authority.sign("sender1"), str(authority.file)))
    client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
    with client:
        client.say("NAME sender1\nREPLICATE\nFEDERATION_ACK sender2 5")
        client.read_until("POSITION caches")
        wait_until(lambda: Reader.objects.filter(name="sender1", rights__refused=1).exists())
        yield client


@pytest.mark.scenario
def test_an_operator_sees_what_a_connection_may_do_and_what_it_was_refused(boss, new_page, sender):
    for screen, options in SCREENS.items():
        page = new_page(**options)
        log_in(page)
        playwright_api.expect(page.locator("#live-readers")).to_contain_text("1 command refused")
        page.get_by_role("button", name="Lines of sender1").click()
        row = page.locator('#live-readers tr[data-key="\\a rights"]')
        playwright_api.expect(row.locator("th .live-text")).to_have_text("Rights of certificate sender1")
        playwright_api.expect(row.locator("th .live-sub")).to_have_text(ALLOWED)
        playwright_api.expect(row.get_by_text(REFUSED)).to_be_visible()
        row.scroll_into_view_if_needed()
        is_inside = "(row) => row.getBoundingClientRect().right <= document.documentElement.clientWidth + 1"
        assert row.evaluate(is_inside) or screen == "phone", "the row is wider than the screen"
        keep(page, f"wire-rights-{screen}")
