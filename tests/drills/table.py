"""Drills by name, one after the other, as a table with what is wrong below each row."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from drills.runs import Say
from drills.story import Timeline
from longhaul.core.errors import UsageError
from longhaul.core.units import Seconds

DrillT = TypeVar("DrillT", bound=Any)
"""Has a `name`, as in the incident book, such as `M13`."""


@dataclass(frozen=True)
class Result(Generic[DrillT]):
    """A drill that was run."""

    drill: DrillT
    story: Timeline | None
    """None: it could not be told."""
    complaints: tuple[str, ...]
    """What is not as the incident book says; none if it passed."""
    seconds: Seconds

    @property
    def verdict(self) -> str:
        return "FAILED" if self.complaints else "ok"


def by_name(drills: Sequence[DrillT], names: Sequence[str]) -> tuple[DrillT, ...]:
    """Those of `drills` with these names, in any case of letters; all if there are no names.

    Raises:
        UsageError: there is no such drill.
    """
    known = {drill.name.lower(): drill for drill in drills}
    unknown = [name for name in names if name.lower() not in known]
    if unknown:
        there = ", ".join(drill.name for drill in drills)
        raise UsageError(f"drill {unknown[0]}: no such drill", f"there are: {there}")
    return tuple(known[name.lower()] for name in names) or tuple(drills)


def run_all(
    drills: Sequence[DrillT],
    run: Callable[[DrillT], Result[DrillT]],
    told: Callable[[Result[DrillT]], str],
    say: Say,
) -> bool:
    """Run drills and print what became of each; True if all passed.

    Args:
        drills: in their order.
        run: runs one and judges it.
        told: its row.
        say: prints a line.
    """
    began = time.monotonic()
    failed = []
    for drill in drills:
        result = run(drill)
        say(told(result))
        for complaint in result.complaints:
            say(f"      {complaint}")
        if result.complaints:
            failed.append(drill.name)
    seconds = time.monotonic() - began
    verdict = f"FAILED: {', '.join(failed)}" if failed else "PASSED"
    say(f"{len(drills) - len(failed)} of {len(drills)} drills, {seconds:.0f} s: {verdict}")
    return not failed


def row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table; what is too long for its column pushes the others on."""
    pairs = zip(cells, widths, strict=True)
    return " ".join(cell.ljust(width) for cell, width in pairs).rstrip()
