"""A file system that turns read-only under a run, for real. Mounting one needs root."""

import subprocess
from pathlib import Path

import pytest

from longhaul.store.catalogue import catalogue
from small_runs import HALF_A_STEP, is_verified

pytestmark = pytest.mark.slow  # `make drills-real`

STEPS = tuple(f"--set={option}" for option in ("train.steps=120", *HALF_A_STEP))


class Mount:
    """A small file system that can be made read-only and writable again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def turn(self, how: str) -> None:
        """`ro` or `rw`. Read-only only once nobody has a file open for writing."""
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.path)], check=True,
                       capture_output=True)  # fmt: skip


@pytest.fixture
def mounted(room, mount_small) -> Mount:
    """The run's checkpoints lie on it; its journal does not, whose files stay open."""
    small = mount_small("64m")
    folder = room.folder()
    folder.path.mkdir(parents=True)
    folder.checkpoints.symlink_to(small)
    return Mount(small)


def turned_read_only(room, mounted) -> None:
    """Between two saves: with a file of one open the kernel would refuse."""
    for _ in range(200):
        try:
            return mounted.turn("ro")
        except subprocess.CalledProcessError:
            continue
    raise AssertionError("the file system could not be made read-only")


def test_training_waits_for_a_file_system_that_takes_no_saves_and_goes_on(
    room, mounted, output_until, undisturbed, ends_like
) -> None:
    process = room.start("train", "drill", *STEPS)
    room.wait_for("a verified checkpoint", is_verified)
    turned_read_only(room, mounted)
    said = output_until(process, "PAUSED")
    assert process.poll() is None
    mounted.turn("rw")
    output, _ = process.communicate(timeout=120)
    said += output
    assert process.returncode == 0, said
    assert "Read-only file system" in said
    assert "it can be saved again: training goes on" in said
    ends_like(room.folder(), undisturbed)


def test_training_that_cannot_be_saved_for_too_long_stops_and_says_what_is_kept(
    room, mounted
) -> None:
    process = room.start("train", "drill", *STEPS, "--set", "checkpoint.retry_minutes=0.05")
    room.wait_for("a verified checkpoint", is_verified)
    turned_read_only(room, mounted)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 17, output
    newest = max(checkpoint.step for checkpoint in catalogue(room.folder().checkpoints))
    assert "nothing could be saved for 0.05 minutes (checkpoint.retry_minutes)" in output
    assert f"step-{newest} is kept" in output
    assert "Read-only file system" in output
