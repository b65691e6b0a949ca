"""The file that keeps a run which was moved from being started."""

from dataclasses import replace
from pathlib import Path

import pytest

from fakes import FakeClock
from longhaul.core.errors import ExitCode, UsageError
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.lease import acquire
from longhaul.logbook.moves import (
    RunMove,
    RunMoved,
    end_move,
    is_moved,
    move_of,
    refuse_if_moved,
    write_move,
)

AWAY = RunMove(
    move="0123456789abcdef", state="away", source="a", destination="b", tier="s3://x/b/run",
    step=63, who="anna", reason="cheaper", time=1_700_000_000.0,
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path / "run", FakeClock())


def test_what_is_written_is_read_back_and_can_be_ended_twice(folder: RunFolder) -> None:
    refuse_if_moved(folder)
    assert move_of(folder) is None
    write_move(folder, AWAY)
    assert move_of(folder) == AWAY
    for _ in range(2):
        end_move(folder)
    assert move_of(folder) is None
    refuse_if_moved(folder)


@pytest.mark.parametrize(
    ("state", "message", "remedy"),
    [
        ("away", "moved to cluster b at step 63, by anna on", "--from b` here"),
        ("leaving", "is being moved to cluster b", "with --cancel it ends it"),
        ("arriving", "comes from cluster a, and not all of it is here", "--from a` goes on"),
    ],
)
def test_a_start_is_refused_with_where_the_run_is_and_the_way_out(
    folder: RunFolder, state, message: str, remedy: str
) -> None:
    write_move(folder, replace(AWAY, state=state))
    with pytest.raises(RunMoved) as refused:
        refuse_if_moved(folder)
    assert message in refused.value.message
    assert remedy in refused.value.remedy
    assert refused.value.exit_code == ExitCode.NEEDS_PERSON


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"state": "here"}'])
def test_a_damaged_file_keeps_the_run_from_being_started(folder: RunFolder, content: str) -> None:
    (folder.path / "moved.json").write_text(content)
    assert is_moved(folder)
    with pytest.raises(UsageError, match="may train in another cluster"):
        refuse_if_moved(folder)


def test_a_folder_that_nothing_has_come_to_yet_is_closed_too(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    write_move(folder, replace(AWAY, state="arriving"))
    assert not folder.exists
    with pytest.raises(RunMoved):
        refuse_if_moved(folder)


def test_attempts_count_on_from_those_made_elsewhere(folder: RunFolder) -> None:
    with acquire(folder, FakeClock(), after=7).keep() as lease:
        assert lease.attempt == 8
    with acquire(folder, FakeClock(), after=3).keep() as lease:
        assert lease.attempt == 9
