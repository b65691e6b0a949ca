"""What the documents point to is there: pages, sections, files of the package, commands."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from longhaul.cli.entry import application

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
_NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def _prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), flags=re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("page", PAGES, ids=_NAMES)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", _prose(page))
    for link in links:
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in _anchors(there), f"{page.name}: {link}"


def test_the_map_in_the_readme_is_true() -> None:
    section = (ROOT / "README.md").read_text().split("## Where to look")[1].split("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| ")]
    for path in re.findall(r"`([\w/.]+/[\w.]*)`", "".join(rows)):
        assert (ROOT / "src/longhaul" / path).exists(), path
    commands = set(get_command(application()).commands)  # type: ignore[attr-defined]
    first_cells = " ".join(row.split("|")[1] for row in rows)
    assert set(re.findall(r"`([\w-]+)`", first_cells)) <= commands


@pytest.mark.parametrize("page", PAGES, ids=_NAMES)
def test_pages_name_files_and_commands_that_exist(page: Path) -> None:
    stages = "|".join(p.name for p in (ROOT / "src/longhaul").iterdir() if p.is_dir())
    for path in re.findall(rf"(?<![\w/])((?:{stages})/[\w/.]+(?:(?=`)|\.py\b))", page.read_text()):
        there = ROOT / "src/longhaul" / path
        found = (there, there.with_suffix(".py"), ROOT / path)
        assert any(candidate.exists() for candidate in found), f"{page.name}: {path}"
    commands = set(get_command(application()).commands)  # type: ignore[attr-defined]
    for command in re.findall(r"(?:^|`)longhaul ([a-z][a-z-]+)", page.read_text(), re.MULTILINE):
        assert command in commands, f"{page.name}: longhaul {command}"
