import time
from pathlib import Path

from fakes import FakeClock
from longhaul.logbook.folder import create_run
from longhaul.supervise.nodes.placement import posts_here
from longhaul.supervise.ranks import group as group_module
from longhaul.supervise.ranks.group import Group
from longhaul.supervise.ranks.progress import ProgressFile, progress_path


class EndsWhileLookedAt:
    """A worker that runs at the first so many looks at its exit code, and has failed at the next.

    Args:
        rank: its number.
        looks: at which it runs.
    """

    errors = None
    pid = 0

    def __init__(self, rank: int, looks: int) -> None:
        self.rank = rank
        self._looks = looks

    @property
    def exit_code(self) -> int | None:
        self._looks -= 1
        return None if self._looks >= 0 else 1

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def log_end(self, most: int) -> str:
        return ""

    def kill(self) -> bool:
        return True

    def pass_on(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_rank_that_ends_while_deaths_are_counted_is_counted_now_or_next_time(
    tmp_path: Path, monkeypatch
) -> None:
    looks = {0: 0, 1: 1}
    monkeypatch.setattr(
        group_module, "RankProcess", lambda rank, outfit: EndsWhileLookedAt(rank, looks[rank])
    )
    folder = create_run(tmp_path / "run", FakeClock())
    group = Group(folder, 1, posts_here(2), lambda: None, (), 0.0)
    try:
        first = {death.rank: death.ended for death in group.deaths(5.0)}
        then = {death.rank: death.ended for death in group.deaths(7.0)}
    finally:
        group.close()
    assert first[0] == 5.0
    assert then == {0: 5.0, 1: first.get(1, 7.0)}


def test_what_ranks_said_before_their_start_does_not_count_even_after_a_reboot(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(
        group_module, "RankProcess", lambda rank, outfit: EndsWhileLookedAt(rank, 9)
    )
    folder = create_run(tmp_path / "run", FakeClock())
    folder.workers.mkdir(exist_ok=True)
    path = progress_path(folder, 0)
    path.write_text("step 90 95 9e9 1e9")  # this machine had been up for longer
    group = Group(folder, 1, posts_here(1), lambda: None, (), 0.0)
    try:
        assert not group.steps_made
        path.write_text(f"step 91 96 {group.began - 1.0} 1e9")
        assert not group.steps_made
        monkeypatch.setattr(time, "time", lambda: 1.0)  # the clock is set back
        ProgressFile(path).enter("step", 5)
        assert group.step == 5
    finally:
        group.close()
