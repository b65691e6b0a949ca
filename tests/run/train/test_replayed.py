"""A real run that was disturbed, restarted and pruned is judged again from its journal alone."""

from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from fakes import SilentView
from longhaul.cli.diagnose import judged_again
from longhaul.core.errors import ExitCode
from longhaul.core.records import Decision, Event, Finding, StepRecord, to_line
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.recover.backtest import Backtest
from longhaul.recover.plan import WHO
from longhaul.run.train.launch import Start, start
from longhaul.store.catalogue import catalogue
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "model.width=16", "model.layers=1", "model.context=32",
    "batch.sequence_length=32", "batch.sequences=4", "batch.micro_sequences=4", "batch.stages=[]",
    "optim.schedule.shape=constant", "optim.schedule.warmup_steps=2",
    "evaluation.tokens=256", "evaluation.interval_steps=10",
    "checkpoint.interval_steps=10", "checkpoint.keep_last=1",
    "checkpoint.snapshot_interval_steps=5",
    "recover.probation_steps=3", "recover.margin_steps=2", "recover.skip_steps=6",
    "recover.max_skipped_share=0.9", "recover.raise_after_steps=15",
    "monitor.gauge_interval_steps=0",
    'recover.ladder.non_finite=[["rollback", "lower-lr"]]',
)  # fmt: skip
STEPS = 160
POISONED_DRAWS = [*range(92, 108), *range(220, 236), *range(380, 396)]
SAME = ("cause", "actions", "rollback", "skip", "set", "reset", "fallback", "first_step", "verdict")


class Killed(BaseException):
    """What SIGKILL would do: nothing of the run's own ending is reached."""


class Fatal(SilentView):
    def __init__(self, at_step: int) -> None:
        super().__init__()
        self.at_step = at_step

    def show(self, record: StepRecord | Event) -> None:
        if isinstance(record, StepRecord) and record.step == self.at_step:
            raise Killed


@pytest.fixture
def _poison(poison_draws: Callable[[Collection[int]], None]) -> None:
    poison_draws(POISONED_DRAWS)


def decided(folder: RunFolder) -> list[Decision]:
    records = read_journal(folder, steps=False)
    return [r for r in records if isinstance(r, Decision) and r.kind == "recover" and r.who == WHO]


def assert_same(done: Backtest, folder: RunFolder) -> None:
    live = decided(folder)
    assert [turn.live for turn in done.turns] == live
    for turn in done.turns:
        assert turn.would is not None
        assert turn.live is not None
        would = turn.would.decision_data(turn.step)
        assert {name: would[name] for name in SAME} == {n: turn.live.data[n] for n in SAME}
        assert turn.step == turn.live.step
    told = [r for r in read_journal(folder) if isinstance(r, Finding)]
    assert list(map(to_line, done.findings)) == list(map(to_line, told))


@pytest.mark.usefixtures("_poison")
@pytest.mark.parametrize("killed_at", [40, pytest.param(70, marks=pytest.mark.slow)])
def test_a_journal_tells_every_decision_again_as_it_was(
    tmp_path: Path, prepared: Path, killed_at: int
) -> None:
    """From memory and from disk, with a ring and checkpoints that are pruned, across a kill, and
    across a restart with other limits."""

    def train(view: SilentView, *options: str) -> ExitCode:
        typed = (*TINY, f"train.steps={STEPS}", *options)
        return start(Start("drill", typed, runs=tmp_path, prepared=prepared), view)

    folder = RunFolder(tmp_path / "drill")
    with pytest.raises(Killed):
        train(Fatal(killed_at), "checkpoint.snapshot_mb=0.5")
    others = "recover.margin_steps=12", "recover.diagnose=false"
    assert train(SilentView(), "checkpoint.snapshot_mb=0.5", *others) is ExitCode.FINISHED
    backs = [r for r in read_journal(folder) if isinstance(r, Event) and r.kind == "rolled-back"]
    assert {back.data["where"] for back in backs} == {"memory", "disk"}
    assert len(backs) >= 3
    assert any("raise-lr" in decision.data["actions"] for decision in decided(folder))
    assert len(catalogue(folder.checkpoints)) < STEPS // 10
    done, _ = judged_again(folder)
    assert_same(done, folder)
