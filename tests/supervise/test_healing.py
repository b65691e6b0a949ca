import time
from pathlib import Path

from longhaul.logbook.folder import RunFolder
from longhaul.supervise.history import forget_peer_recovery, read_peer_recovery, write_peer_recovery


def test_who_was_healed_says_by_whom_at_which_step_and_when(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.workers.mkdir()
    assert read_peer_recovery(folder, 2) is None
    before = time.monotonic()
    write_peer_recovery(folder, 2, peer=1, step=340)
    peer_recovery = read_peer_recovery(folder, 2)
    assert peer_recovery is not None
    assert (peer_recovery.peer, peer_recovery.step) == (1, 340)
    assert before <= peer_recovery.monotonic <= time.monotonic()
    assert read_peer_recovery(folder, 1) is None
    forget_peer_recovery(folder, 2)
    assert read_peer_recovery(folder, 2) is None, "another life"


def test_a_disk_that_takes_nothing_ends_no_replica(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "gone")
    write_peer_recovery(folder, 1, peer=0, step=3)
    forget_peer_recovery(folder, 1)
    assert read_peer_recovery(folder, 1) is None


def test_what_is_no_healing_is_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.workers.mkdir()
    for torn in ("", '{"peer": 1', '{"peer": 1}', "[]"):
        (folder.workers / "1.healed").write_text(torn)
        assert read_peer_recovery(folder, 1) is None
