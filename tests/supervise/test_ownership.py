import errno
import shutil

import pytest

from longhaul.core.clocks import FakeClock
from longhaul.logbook import holder
from longhaul.logbook.folder import create_run
from longhaul.logbook.lease import RunGone, acquire
from longhaul.supervise import ownership as ownership_module
from longhaul.supervise.ownership import Ownership


class Run:
    def __init__(self, path) -> None:
        self.clock = FakeClock()
        self.folder = create_run(path, self.clock)
        self.lease = acquire(self.folder, self.clock)
        self.said: list[str] = []
        self.waited: list[float] = []
        self.ownership = Ownership(self.folder, self.lease, self.clock, self.said.append)

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        self.clock.advance(seconds)
        assert len(self.waited) < 100, "it waits for ever"
        return True


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path / "run")


def full_until(monkeypatch, run: Run, looks: int, number: int) -> None:
    create = holder.create_exclusively

    def refuse(path, content):
        if len(run.waited) < looks:
            raise OSError(number, "refused", str(path))
        return create(path, content)

    monkeypatch.setattr(holder, "create_exclusively", refuse)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_waited_for_and_told_once(run, monkeypatch, number) -> None:
    full_until(monkeypatch, run, 3, number)
    assert run.ownership.renew(run.wait)
    assert run.lease.attempt == 2
    assert len(run.waited) == 3
    assert sum("PAUSED" in line for line in run.said) == 1
    assert "there is space again" in run.said[-1]


def test_another_error_than_a_full_disk_is_no_pause(run, monkeypatch) -> None:
    full_until(monkeypatch, run, 3, errno.EACCES)
    with pytest.raises(PermissionError):
        run.ownership.renew(run.wait)
    assert not run.said


def test_who_wants_an_end_need_not_wait_for_space(run, monkeypatch) -> None:
    full_until(monkeypatch, run, 3, errno.ENOSPC)
    assert not run.ownership.renew(lambda seconds: False)
    assert run.lease.attempt == 1


def test_a_disk_with_room_for_a_lease_alone_is_full(run, monkeypatch) -> None:
    usage = shutil.disk_usage(run.folder.path)

    def nearly_full(path):
        return usage._replace(free=usage.free if len(run.waited) > 1 else 4096)

    monkeypatch.setattr(ownership_module.shutil, "disk_usage", nearly_full)
    assert run.ownership.renew(run.wait)
    assert len(run.waited) == 2


def test_workers_end_in_a_folder_that_stays_away_and_a_short_absence_is_survived(run) -> None:
    away = run.folder.path.rename(run.folder.path.with_name("away"))
    run.ownership.look(40)
    run.clock.advance(5)
    run.ownership.look(None)
    away.rename(run.folder.path)
    run.ownership.await_folder(run.wait)
    assert run.ownership.renew(run.wait)
    run.folder.path.rename(away)
    with pytest.raises(RunGone, match="at step 40"):
        run.ownership.await_folder(run.wait)
    assert not run.folder.path.exists()
