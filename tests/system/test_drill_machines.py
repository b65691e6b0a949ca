"""The incident book's machine rows with real processes: `make drills-machines` runs all of them.

What judges them is tested too: a drill must fail where the right answer is taken away.
"""

import dataclasses
from contextlib import closing
from pathlib import Path

import pytest

from drills.machines import Result, chosen, complaints, drill_machines, run_drill
from drills.stage import Stage
from longhaul.core.errors import UsageError
from longhaul.run.drill.fault import parse_fault

CORE = ("S2", "M1", "M12")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def drill_room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drills")


@pytest.fixture(scope="module")
def done(drill_room: Path) -> dict[str, Result]:
    """What was run already, by name."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("name", CORE)
def test_a_drill_ends_as_the_incident_book_says(
    name: str, drill_room: Path, done: dict[str, Result]
) -> None:
    (drill,) = chosen([name])
    done[name] = run_drill(drill, drill_room)
    assert not done[name].complaints


@pytest.mark.slow
def test_another_end_than_the_expected_one_is_complained_of(
    drill_room: Path, done: dict[str, Result]
) -> None:
    result = done["S2"]
    story = result.story
    assert story is not None

    def judged(**other: object) -> str:
        drill = dataclasses.replace(result.drill, **other)
        with closing(Stage(drill_room, drill.name)) as stage:
            return "\n".join(complaints(stage, drill, story))

    assert not judged()
    assert "exit codes (0,), not (16, 0)" in judged(codes=(16, 0))
    assert "failures (('killed', 1),), not (('hang', 0),)" in judged(failures=(("hang", 0),))
    assert "it ended at step 60" in judged(steps=80)
    # Another number of processes adds up in another order: the very bytes are asked for.
    assert "pieces of state differ" in judged(processes=1)


@pytest.mark.slow
def test_a_run_that_may_not_start_again_fails_its_drill(drill_room: Path) -> None:
    said: list[str] = []
    assert not drill_machines(["M2"], drill_room / "blind", said.append, blind=True)
    assert any("exit codes (17,), not (0,)" in line for line in said)
    assert said[-1].endswith("FAILED: M2")


def test_every_row_of_the_book_has_a_drill() -> None:
    drills = chosen([])
    rows = [f"M{n}" for n in range(1, 19)] + [f"S{n}" for n in range(1, 8)]
    assert [drill.name for drill in drills] == rows
    for drill in drills:
        for fault in map(parse_fault, drill.faults):
            assert fault.first <= drill.steps
    with pytest.raises(UsageError, match="no such drill"):
        chosen(["M99"])
