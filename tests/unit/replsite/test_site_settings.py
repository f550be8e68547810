"""The ports of metrics: one, or a range."""

from __future__ import annotations

import pytest

from replsite.site_settings import SiteSettings
from streams.declared_settings import BadSetting, from_texts


@pytest.mark.parametrize(("text", "ports"), [("", []), ("9101", [9101]), ("9101-9103", [9101, 9102, 9103])])
def test_ports_are_one_or_from_the_first_to_the_last(text, ports):
    assert list(from_texts(SiteSettings, {"REPLSITE_METRICS_PORTS": text}).metrics_ports) == ports


@pytest.mark.parametrize("text", ["many", "9101-", "9103-9101", "0", "70000", "65535-65536", "-5"])
def test_ports_that_nobody_can_listen_on_are_refused(text):
    with pytest.raises(BadSetting, match=r"^REPLSITE_METRICS_PORTS is .*write a port, or two"):
        from_texts(SiteSettings, {"REPLSITE_METRICS_PORTS": text})
