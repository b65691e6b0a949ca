import os

import pytest

from longhaul.logbook import folder
from longhaul.logbook.folder import RESERVE_BYTES, Reserve


def test_the_space_is_really_allocated_and_really_given_back(tmp_path):
    path = tmp_path / ".reserve"
    kept = Reserve(path)
    kept.refill()
    assert path.stat().st_blocks * 512 >= RESERVE_BYTES
    assert kept.release()
    assert not path.exists()
    assert not kept.release()


def test_it_does_not_take_the_last_space(tmp_path, monkeypatch):
    class NearlyFull:
        free = RESERVE_BYTES

    monkeypatch.setattr(folder.shutil, "disk_usage", lambda path: NearlyFull)
    Reserve(tmp_path / ".reserve").refill()
    assert not (tmp_path / ".reserve").exists()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot allocate ahead")
def test_a_refused_allocation_leaves_nothing(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder.os, "posix_fallocate", refuse)
    Reserve(tmp_path / ".reserve").refill()
    assert not (tmp_path / ".reserve").exists()
