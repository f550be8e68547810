"""Every link between our pages leads somewhere, every page is listed, and the repository names no machine."""

import ast
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


def names_code(dotted: str) -> bool:
    """Whether a dotted name is a module of ours, or a module's name followed by a word of the module."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        place = PROJECT.joinpath(*parts[:cut])
        for module in (place.with_suffix(".py"), place / "__init__.py"):
            if module.exists():
                code = module.read_text().split('"""', 2)[-1]  # without the docstring
                return parts[cut:] == [] or re.search(rf"\b{parts[cut]}\b", code) is not None
    return False


@pytest.mark.parametrize("page", [*PAGES, PROJECT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_code_that_a_page_names_exists(page: Path) -> None:
    """Two words with a dot may be a permission, a check or a file, too. Replaced decisions and upgrades say what was."""
    text = page.read_text()
    if "**Replaced by [" in text or page.stem == "upgrade":
        return
    files = re.findall(r"`((?:replsite|pipeline|events|state|streams|script|tests)/[\w/]+\.py)`", text)
    assert [name for name in files if not (PROJECT / name).exists()] == []
    dotted = re.findall(r"`(?!replsite\.example)((?:replsite|pipeline|events|state|streams)(?:\.\w+){2,})`", text)
    assert [name for name in dotted if not names_code(name)] == []


def test_the_index_names_every_page() -> None:
    docs = PROJECT / "docs"
    named = re.findall(r"\]\(([^)#:]+\.md)", (docs / "index.md").read_text())
    pages = {str(page.relative_to(docs)) for page in PAGES[1:]} - {"index.md"}
    assert set(named) == pages
    assert len(named) == len(pages)  # each of them once


def test_the_readme_leads_to_the_index_and_is_short() -> None:
    text = PAGES[0].read_text()
    assert "](docs/index.md)" in text
    assert len(re.findall(r"(?<!!)\[[^\]]+\]\((?!http)", text)) == 6
    assert len(text.splitlines()) <= 80
    (sample,) = re.findall(r"```python\n(.*?)```", text, re.S)
    assert [type(node).__name__ for node in ast.parse(sample).body] == ["ClassDef", "With", "FunctionDef"]


@pytest.mark.parametrize(
    "page",
    [*PAGES, PROJECT / "CONTRIBUTING.md", PROJECT / "SECURITY.md"],
    ids=lambda page: str(page.relative_to(PROJECT)),
)
def test_lines_and_cells_are_short(page: Path) -> None:
    """Lines of prose; of tables the cells. What is shown as typed or printed is as long as it is."""
    text = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.M | re.S)
    lines = text.splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith(("![", "|", "    "))] == []
    cells = [cell for line in lines if line.startswith("|") for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
    assert [cell for cell in cells if len(cell.strip()) > 200] == []


@pytest.mark.parametrize("page", sorted((PROJECT / "docs" / "decisions").glob("*.md")), ids=lambda page: page.stem)
def test_a_decision_has_its_number_a_context_and_a_price(page: Path) -> None:
    text = page.read_text()
    number = page.stem.partition("-")[0]
    assert text.startswith(f"# {number}: ")
    assert re.findall(r"^\*\*(Context|Decision|Price)\.\*\*", text, re.M) == ["Context", "Decision", "Price"]
    assert f"](decisions/{page.name})" in (PROJECT / "docs" / "index.md").read_text()


def test_the_glossary_has_each_word_once_with_a_page_that_explains_it() -> None:
    text = (PROJECT / "docs" / "reference" / "glossary.md").read_text()
    entries = re.findall(r"^\* \*\*(.+?)\*\*:(.+?)(?=^\* |^#|\Z)", text, re.M | re.S)
    words = [word.lower() for word, _ in entries]
    assert len(words) > 60
    assert sorted(words) == sorted(set(words))
    assert [word for word, meaning in entries if "](" not in meaning] == []


def test_no_page_or_module_names_a_path_of_somebodys_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    texts = [
        PROJECT / name for name in listed.split("\0") if name.endswith((".py", ".md", ".toml", ".txt", ".html", ".js"))
    ]
    pattern = re.compile(r"(?<![\w.])/(work|root|home/\w+)/\w")
    named = {str(path.relative_to(PROJECT)) for path in texts if path.exists() and pattern.search(path.read_text())}
    assert named == set()
