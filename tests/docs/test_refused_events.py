"""Every reason for refusing an event is documented, and no other."""

import re
from pathlib import Path

from events.errors import Reason

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "refused-events.md"


def test_page_lists_exactly_the_reasons_in_their_order():
    documented = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert documented == [reason.value for reason in Reason]
