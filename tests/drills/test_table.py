"""Drills as a table: who is chosen, what is told, when all of it has passed."""

from dataclasses import dataclass

import pytest

from drills.table import by_name, row, run_all
from longhaul.core.errors import UsageError


@dataclass(frozen=True)
class Thing:
    name: str


@dataclass(frozen=True)
class Done:
    name: str
    complaints: tuple[str, ...] = ()


DRILLS = (Thing("N1"), Thing("N2"), Thing("M13"))


def test_drills_are_chosen_in_the_order_asked_for_in_any_case_of_letters() -> None:
    assert [drill.name for drill in by_name(DRILLS, ("m13", "N1"))] == ["M13", "N1"]
    assert by_name(DRILLS, ()) == DRILLS


def test_a_drill_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="drill M99: no such drill") as refused:
        by_name(DRILLS, ("N1", "M99"))
    assert "N1, N2, M13" in refused.value.remedy


def test_one_complaint_fails_all_and_is_told_below_its_drill() -> None:
    said: list[str] = []
    wrong = {"N2": ("it ended at step 3", "two steps are missing")}
    assert not run_all(
        DRILLS, lambda drill: Done(drill.name, wrong.get(drill.name, ())), lambda d: d.name,
        said.append,
    )  # fmt: skip
    assert [line.strip() for line in said[:-1]] == ["N1", "N2", *wrong["N2"], "M13"]
    assert said[-1].startswith("2 of 3 drills")
    assert said[-1].endswith("FAILED: N2")


def test_without_a_complaint_all_have_passed() -> None:
    said: list[str] = []
    assert run_all(DRILLS, lambda drill: Done(drill.name), lambda done: done.name, said.append)
    assert said[-1].startswith("3 of 3 drills")
    assert said[-1].endswith("PASSED")


def test_what_is_too_long_for_its_column_pushes_the_others_on() -> None:
    assert row(("a", "b", "c"), (3, 3, 3)) == "a   b   c"
    assert row(("abcde", "b", ""), (3, 3, 3)) == "abcde b"
