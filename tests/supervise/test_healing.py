import time
from pathlib import Path

from longhaul.logbook.folder import RunFolder
from longhaul.supervise.history import forget_healing, read_healing, tell_healing


def test_who_was_healed_says_by_whom_at_which_step_and_when(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.workers.mkdir()
    assert read_healing(folder, 2) is None
    before = time.monotonic()
    tell_healing(folder, 2, peer=1, step=340)
    healing = read_healing(folder, 2)
    assert healing is not None
    assert (healing.peer, healing.step) == (1, 340)
    assert before <= healing.monotonic <= time.monotonic()
    assert read_healing(folder, 1) is None
    forget_healing(folder, 2)
    assert read_healing(folder, 2) is None, "another life"


def test_a_disk_that_takes_nothing_ends_no_replica(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "gone")
    tell_healing(folder, 1, peer=0, step=3)
    forget_healing(folder, 1)
    assert read_healing(folder, 1) is None


def test_what_is_no_healing_is_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.workers.mkdir()
    for torn in ("", '{"peer": 1', '{"peer": 1}', "[]"):
        (folder.workers / "1.healed").write_text(torn)
        assert read_healing(folder, 1) is None
