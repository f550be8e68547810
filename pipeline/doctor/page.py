"""Writes a report as one HTML file that needs nothing else, so that it can be handed on."""

from __future__ import annotations

from pathlib import Path

from django.template.loader import render_to_string

from pipeline.doctor.report import Finding, Report
from pipeline.doctor.sections import by_reason, finding_lines, sections, summary
from streams.runtime.text import safe_text

__all__ = ["write_page"]

#: Findings of one reason that are open. The others are folded.
_OPEN = 3


def write_page(report: Report, path: Path) -> None:
    """Writes the page. Raises ``OSError``."""
    context = {
        "report": report,
        "headline": report.headline(),
        "summary": list(summary(report)),
        "reasons": [
            (
                found,
                [_texts(finding) for finding in found.findings[:_OPEN]],
                [_texts(finding) for finding in found.findings[_OPEN:]],
                found.total - len(found.findings),
            )
            for found in by_reason(report)
        ],
        "sections": [
            (
                section,
                [[(_shown(cell), at in section.numbers) for at, cell in enumerate(row)] for row in section.rows],
            )
            for section in sections(report)
        ],
    }
    path.write_text(render_to_string("doctor/report.html", context), encoding="utf-8")


def _texts(finding: Finding) -> tuple[str, list[str]]:
    return _shown(finding.text), [_shown(line) for line in finding_lines(finding)]


def _shown(text: str) -> str:
    return safe_text(text, None)
