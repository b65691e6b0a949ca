"""The short drills of the incident book, as real processes; `make drills-numbers` runs all."""

import dataclasses
from pathlib import Path

import pytest

from drills.numbers import chosen, drill_numbers, run_drill, set_up

SHORT = ("N2", "N3", "N4", "N7", "N9", "N11", "H1", "H2", "H3", "H4", "H5")


@pytest.fixture(scope="module")
def drill_room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drills")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_drill_ends_as_the_incident_book_says(name: str, drill_room: Path) -> None:
    (drill,) = chosen([name])
    assert not run_drill(drill, drill_room).complaints


@pytest.mark.slow
def test_a_judgement_that_finds_nothing_fails_the_drills(drill_room: Path) -> None:
    said: list[str] = []
    assert not drill_numbers(["N9"], drill_room / "blind", said.append, blind=True)
    assert any("not found: loss-spike or divergence" in line for line in said)
    assert said[-1].endswith("FAILED: N9")


@pytest.mark.slow
def test_a_finding_about_something_harmless_fails_its_drill(drill_room: Path) -> None:
    # The frozen table of N7, told to be harmless: what a false alarm would look like.
    (frozen,), (harmless,) = chosen(["N7"]), chosen(["H3"])
    drill = dataclasses.replace(frozen, name="false-alarm", expected=harmless.expected)
    found = "\n".join(run_drill(drill, drill_room).complaints)
    assert "do not train" in found or "No gradient reaches" in found
    assert "decided report, which nothing called for" in found


def test_what_judges_a_run_is_told_nothing_of_its_faults(drill_room: Path) -> None:
    (drill,) = chosen(["N9"])
    told = [p.read_text() for p in set_up(drill, drill_room / "told").path.iterdir() if p.is_file()]
    assert told
    assert not any("noise-tokens" in text or "above_lr" in text for text in told)
