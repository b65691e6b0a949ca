"""Real runs for real faults: the rooms of `tests/system`, and what an undisturbed run ends in."""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longhaul.logbook.folder import RunFolder
from longhaul.store.run_differences import final_state
from small_runs import HALF_A_STEP

_SYSTEM = Path(__file__).parents[1] / "system/conftest.py"
_SPEC = importlib.util.spec_from_file_location("longhaul_system_rooms", _SYSTEM)
assert _SPEC is not None
assert _SPEC.loader is not None
rooms = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = rooms
_SPEC.loader.exec_module(rooms)
shared_prepared, room, wait_until = rooms.shared_prepared, rooms.room, rooms.wait_until

STEPS = tuple(f"--set={option}" for option in ("train.steps=120", *HALF_A_STEP))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, shared_prepared) -> dict[str, str]:
    """Every tensor and fact in which the `drill` recipe ends after 120 steps, by hash."""
    alone = rooms.Room(tmp_path_factory.mktemp("undisturbed"), shared_prepared)
    code, output = alone.run("train", "drill", *STEPS)
    assert code == 0, output
    return final_state(alone.folder())


@pytest.fixture
def ends_like() -> Callable[[RunFolder, dict[str, str]], None]:
    """Fail unless a run has ended in the same bytes."""

    def compare(folder: RunFolder, expected: dict[str, str]) -> None:
        found = final_state(folder)
        names = expected.keys() | found.keys()
        assert not [name for name in names if expected.get(name) != found.get(name)]

    return compare


@pytest.fixture
def output_until() -> Callable[..., str]:
    """What a process prints, up to where a text stands in it."""

    def read(process, text: str) -> str:
        descriptor, said = process.stdout.fileno(), b""
        os.set_blocking(descriptor, False)
        deadline = time.monotonic() + rooms.DEADLINE_S
        try:
            while text.encode() not in said:
                assert time.monotonic() < deadline, f"{text!r} did not come; said: {said.decode()}"
                try:
                    piece = os.read(descriptor, 65_536)
                except BlockingIOError:
                    time.sleep(0.02)
                    continue
                assert piece, f"{text!r} did not come; said: {said.decode()}"
                said += piece
        finally:
            os.set_blocking(descriptor, True)
        return said.decode()

    return read


@pytest.fixture
def mount_small(tmp_path, room) -> Iterator[Callable[[str], Path]]:
    """Mounts a tmpfs of a size such as `32m`, which needs root, and gives its folder."""
    small = tmp_path / "small"

    def mount(size: str) -> Path:
        small.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(small)]
        try:
            subprocess.run(words, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a file system cannot be mounted here, which needs root: {error}")
        return small

    yield mount
    for process in room.processes:
        room.kill(process)
    if small.is_mount():
        subprocess.run(["umount", "-l", str(small)], check=False)
