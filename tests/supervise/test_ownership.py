import errno
import shutil

import pytest

from fakes import FakeClock
from longhaul.logbook import holder
from longhaul.logbook.folder import create_run
from longhaul.logbook.lease import RunGone, acquire
from longhaul.supervise import ownership as ownership_module
from longhaul.supervise.history import SupervisedRun
from longhaul.supervise.ownership import RETRY_S, Ownership


class Run:
    def __init__(self, path) -> None:
        self.clock = FakeClock()
        self.folder = create_run(path, self.clock)
        self.lease = acquire(self.folder, self.clock)
        self.said: list[str] = []
        self.waited: list[float] = []
        self.ownership = Ownership(
            SupervisedRun(self.folder, self.lease, self.clock, self.said.append)
        )

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.clock.advance(seconds)
        assert len(self.waited) < 100, "it waits for ever"

    def renew(self) -> None:
        while not self.ownership.try_to_renew():
            self.wait(RETRY_S)

    def await_folder(self, stopping: bool = False) -> None:
        while not self.ownership.look(None, running=False, stopping=stopping):
            self.wait(0.5)


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
    run.renew()
    assert run.lease.attempt == 2
    assert len(run.waited) == 3
    assert sum("PAUSED" in line for line in run.said) == 1
    assert "there is space again" in run.said[-1]


def test_another_error_than_a_full_disk_is_no_pause(run, monkeypatch) -> None:
    full_until(monkeypatch, run, 3, errno.EACCES)
    with pytest.raises(PermissionError):
        run.renew()
    assert not run.said


def test_who_wants_an_end_need_not_wait_for_space(run, monkeypatch) -> None:
    full_until(monkeypatch, run, 3, errno.ENOSPC)
    assert not run.ownership.try_to_renew()
    assert run.lease.attempt == 1
    assert not run.waited


def test_who_wants_an_end_need_not_wait_for_a_folder_that_is_away(run) -> None:
    run.folder.path.rename(run.folder.path.with_name("away"))
    with pytest.raises(RunGone):
        run.await_folder(stopping=True)
    assert not run.waited


def test_a_disk_with_room_for_a_lease_alone_is_full(run, monkeypatch) -> None:
    usage = shutil.disk_usage(run.folder.path)

    def nearly_full(path):
        return usage._replace(free=usage.free if len(run.waited) > 1 else 4096)

    monkeypatch.setattr(ownership_module.shutil, "disk_usage", nearly_full)
    run.renew()
    assert len(run.waited) == 2


def test_workers_end_in_a_folder_that_stays_away_and_a_short_absence_is_survived(run) -> None:
    away = run.folder.path.rename(run.folder.path.with_name("away"))
    assert not run.ownership.look(40, running=True, stopping=False)
    run.clock.advance(5)
    assert not run.ownership.look(None, running=True, stopping=False)
    away.rename(run.folder.path)
    run.await_folder()
    run.renew()
    run.folder.path.rename(away)
    with pytest.raises(RunGone, match="at step 40"):
        run.await_folder()
    assert not run.folder.path.exists()
