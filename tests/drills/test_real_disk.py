"""A disk that is full, for real: a small tmpfs. Mounting it needs root."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from longhaul.core.records import Event
from longhaul.supervise.ownership import left_over
from small_runs import HALF_A_STEP, is_verified

pytestmark = pytest.mark.slow  # `make drills-real`

STEPS = tuple(f"--set={option}" for option in ("train.steps=120", *HALF_A_STEP))


class Disk:
    """A file system of a few MiB."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast: list[Path] = []

    def fill(self) -> None:
        """Write until it takes nothing more."""
        self._ballast.append(self.path / f"ballast-{len(self._ballast)}")
        descriptor = os.open(self._ballast[-1], os.O_WRONLY | os.O_CREAT)
        for size in (1 << 16, 1 << 10, 1):
            with suppress(OSError):
                while True:
                    os.write(descriptor, bytes(size))
        os.close(descriptor)

    def free(self) -> None:
        """Take back what `fill` has written."""
        for path in self._ballast:
            path.unlink()


@pytest.fixture
def disk(tmp_path, mount_small) -> Disk:
    """All runs lie on it."""
    small = mount_small("32m")
    (tmp_path / "runs").symlink_to(small)
    return Disk(small)


def test_a_worker_that_dies_while_the_disk_is_full_costs_nothing_but_the_wait(
    room, disk, output_until, undisturbed, ends_like
) -> None:
    process = room.start("train", "drill", *STEPS)
    room.wait_for("a verified checkpoint", is_verified)
    (worker,) = left_over(room.folder())
    os.kill(worker.pid, signal.SIGSTOP)  # it must not be done before the disk is full
    disk.fill()
    (room.folder().journal / ".reserve").unlink(missing_ok=True)  # used up by what is held back
    disk.fill()
    os.kill(worker.pid, signal.SIGKILL)
    said = output_until(process, "PAUSED")
    assert process.poll() is None
    disk.free()
    output, _ = process.communicate(timeout=120)
    said += output
    assert process.returncode == 0, said
    assert "is full and nothing on it can be done without; the newest checkpoint is step" in said
    assert "free space there: training then goes on by itself" in said
    assert "there is space again: training goes on" in said
    ends_like(room.folder(), undisturbed)


def test_the_space_kept_in_reserve_is_enough_for_another_attempt(
    room, disk, undisturbed, ends_like
) -> None:
    process = room.start("train", "drill", *STEPS)
    room.wait_for("a verified checkpoint", is_verified)
    (worker,) = left_over(room.folder())
    os.kill(worker.pid, signal.SIGSTOP)
    disk.fill()
    os.kill(worker.pid, signal.SIGKILL)
    room.wait_for(
        "another attempt",
        lambda r: isinstance(r, Event) and r.kind == "attempt-started" and r.attempt == 2,
    )
    disk.free()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "PAUSED" not in output.split("segment 1.01")[0]
    ends_like(room.folder(), undisturbed)
