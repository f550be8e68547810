"""Every link between our pages leads somewhere, and the repository names no machine."""

import re
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_readme_names_every_page() -> None:
    named = set(re.findall(r"\]\((docs/[^)#]+\.md)", PAGES[0].read_text()))
    assert named == {str(page.relative_to(PROJECT)) for page in PAGES[1:]}


def test_no_page_or_module_names_a_path_of_somebodys_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    texts = [
        PROJECT / name for name in listed.split("\0") if name.endswith((".py", ".md", ".toml", ".txt", ".html", ".js"))
    ]
    pattern = re.compile(r"(?<![\w.])/(work|root|home/\w+)/\w")
    named = {str(path.relative_to(PROJECT)) for path in texts if path.exists() and pattern.search(path.read_text())}
    assert named == set()
