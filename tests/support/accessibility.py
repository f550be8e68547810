"""axe-core in the page that a browser shows: what keeps people with a keyboard, a screen reader or weak sight out.

The engine comes with the package axe-playwright-python, so nothing is fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["serious_findings"]

_WANTED = ("serious", "critical")
#: Rules that colours decide; all others say the same of a page in the dark.
_OF_COLOURS = ("color-contrast", "link-in-text-block")


def _engine() -> str:
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()


def serious_findings(page: Any, *, colours_only: bool = False) -> list[str]:
    """Serious and critical findings in words: the rule, what it asks for, and the first element that breaks it.

    ``colours_only``: of a page whose light form was looked at.
    """
    page.evaluate(_engine())
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if colours_only:
        options["runOnly"] = list(_OF_COLOURS)
    answer = page.evaluate("(options) => axe.run(document, options)", options)
    return [
        f"{found['impact']}: {found['id']} ({found['help']}) in {len(found['nodes'])}, e.g. {found['nodes'][0]['html'][:200]}"
        for found in answer["violations"]
        if found["impact"] in _WANTED
    ]
