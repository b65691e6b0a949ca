"""What rank 0 makes of what the ranks have told: no processes, no tensors."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes import FakeClock
from longhaul.core.errors import ExitCode
from longhaul.core.records import Event, Finding, Record
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.journal import Journal
from longhaul.parallel.layout import Layout
from longhaul.run.train.rank_health import RankHealth, verdict_of
from longhaul.train.rank_comparison import Compared, SilentCorruption

SLOT = "place 0"


class RunLog:
    """Keeps what it is told."""

    lease = SimpleNamespace(attempt=2)
    segment_name = "1.00"

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = RunFolder(folder), FakeClock()
        self.kept: list[Record] = []
        self.durable: list[Event] = []

    def append(self, record: Record) -> None:
        self.kept.append(record)

    def emit(self, kind: str, step: int, /, **data: Any) -> None:
        self.kept.append(event(kind, step, **data))

    def emit_durably(self, kind: str, step: int, /, **data: Any) -> None:
        self.durable.append(event(kind, step, **data))


class Ranks:
    """A trainer that has been told things."""

    def __init__(self, layout: Layout, begin: int = 0) -> None:
        device = SimpleNamespace(type="cpu")
        self.world = SimpleNamespace(layout=layout, size=layout.size, device=device)
        monitor = SimpleNamespace(hash_every=100, witness_every=100)
        self.settings = SimpleNamespace(monitor=monitor)
        self.held_alike = float(layout.replicate > 1)
        self.position = SimpleNamespace(step=begin, draw=10 * begin)
        self.nodes = tuple(f"node{rank // 2}" for rank in range(layout.size))
        self.told: list[Compared] = []
        self.again: list[Compared] = []
        self.pace: list[tuple[int, tuple[float, ...]]] = []

    def comparisons(self) -> list[Compared]:
        told, self.told = self.told, []
        return told

    def paces(self) -> list[tuple[int, tuple[float, ...]]]:
        pace, self.pace = self.pace, []
        return pace

    def compare(self, what: str) -> list[Event]:
        self.told, self.again = self.again, []
        return [event("compared", self.position.step, what=what)]


def event(kind: str, step: int, /, **data: Any) -> Event:
    return Event(kind=kind, attempt=2, step=step, time=0.0, data=data)


def slot(step: int, *losses: float, tolerance: float = 0.0) -> Compared:
    given = tuple({SLOT: (loss, 1.0)} for loss in losses)
    return Compared(step, "slot", given, tolerance)


def watch(
    folder: Path, layout: Layout, begin: int = 0
) -> tuple[RankHealth, Ranks, RunLog, list[str]]:
    trainer, run_log, said = Ranks(layout, begin), RunLog(folder), []
    (folder / "journal").mkdir(exist_ok=True)
    machines: Any = RankHealth(run_log, said.append, trainer, trainer)  # type: ignore[arg-type]
    return machines, trainer, run_log, said


def see(machines: RankHealth, trainer: Ranks, *compared: Compared) -> Event:
    trainer.told = list(compared)
    trainer.position.step = compared[-1].step
    return machines.judged(event("compared", compared[-1].step, what=compared[-1].what))


def test_a_rank_that_is_wrong_ends_the_run_and_its_verdict_is_on_the_medium_first(
    tmp_path: Path,
) -> None:
    machines, trainer, run_log, said = watch(tmp_path, Layout(replicate=4))
    assert see(machines, trainer, slot(10, 2.0, 2.0, 2.0, 2.0)).data["sound"] is True
    machines.act()
    assert see(machines, trainer, slot(20, 2.0, 2.0, 2.5, 2.0)).data["sound"] is False
    with pytest.raises(SilentCorruption, match=r"rank 2: step 20: .*; step 10 was sound") as raised:
        machines.act()
    assert (raised.value.exit_code, raised.value.title) == (ExitCode.FAILED, "SilentCorruption")
    assert int(raised.value.exit_code) == 1
    (verdict,) = run_log.durable
    data = {key: verdict.data[key] for key in ("kind", "ranks", "nodes", "sound_step")}
    assert data == {"kind": "corrupt", "ranks": [2], "nodes": ["node1"], "sound_step": 10}
    assert "silent corruption" in said[-1]


@pytest.mark.parametrize(("again", "how"), [(2.5, "they differ again"), (2.0, "the same now")])
def test_two_that_differ_are_given_the_same_data_once_more_and_nobody_is_accused(
    tmp_path: Path, again: float, how: str
) -> None:
    machines, trainer, run_log, _ = watch(tmp_path, Layout(replicate=2))
    trainer.again = [slot(20, 2.0, again)]
    see(machines, trainer, slot(20, 2.0, 2.5))
    with pytest.raises(SilentCorruption, match=rf"rank 0 or 1: .*{how}"):
        machines.act()
    (verdict,) = run_log.durable
    assert (verdict.data["ranks"], verdict.data["among"]) == ([], [0, 1])
    assert verdict.data["sound_step"] is None


def test_after_a_rollback_what_was_sound_later_is_not_gone_back_to(tmp_path: Path) -> None:
    machines, trainer, run_log, _ = watch(tmp_path, Layout(replicate=3))
    for step in (10, 20, 30):
        see(machines, trainer, slot(step, 2.0, 2.0, 2.0))
    see(machines, trainer, slot(25, 2.0, 2.0, 2.5))
    with pytest.raises(SilentCorruption):
        machines.act()
    assert run_log.durable[0].data["sound_step"] == 20


def test_what_an_earlier_attempt_found_sound_still_is(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / "journal").mkdir()
    journal = Journal(folder, 1)
    for step, sound in ((10, True), (20, True), (30, False)):
        journal.append(event("compared", step, what="slot", sound=sound))
    journal.close()
    machines, trainer, run_log, _ = watch(tmp_path, Layout(replicate=3), begin=25)
    see(machines, trainer, slot(26, 2.5, 2.0, 2.0))
    with pytest.raises(SilentCorruption):
        machines.act()
    assert (run_log.durable[0].data["ranks"], run_log.durable[0].data["sound_step"]) == ([0], 20)


def test_tensor_ranks_of_one_layer_cannot_be_told_apart() -> None:
    # Ranks 2 and 3 compute together, and what one gets wrong the other takes over.
    given = [{f"place {r % 2}": (3.0 if r in (2, 3) else 2.0,)} for r in range(6)]
    verdict = verdict_of(Compared(5, "slot", tuple(given)), 4)
    assert (verdict.kind, verdict.ranks, verdict.sound_step) == ("odd", (2, 3), 4)


def test_weights_are_compared_among_those_that_hold_the_same() -> None:
    given = [{"stage 0, shard 0": "a"}, {"stage 0, shard 1": "b"}] * 3
    assert verdict_of(Compared(5, "weights", tuple(given)), None).kind == "sound"
    given[3] = {"stage 0, shard 1": "c"}
    assert verdict_of(Compared(5, "weights", tuple(given)), None).ranks == (3,)


def test_where_bits_need_not_be_equal_a_small_difference_is_none() -> None:
    assert verdict_of(slot(5, 2.0, 2.0001, 2.0, tolerance=1e-3), None).kind == "sound"
    assert verdict_of(slot(5, 2.0, 2.01, 2.0, tolerance=1e-3), None).ranks == (1,)
    assert verdict_of(slot(5, 2.0, 2.0001, 2.0), None).ranks == (1,)


def test_a_straggler_is_told_to_people_and_to_the_supervisor(tmp_path: Path) -> None:
    machines, trainer, run_log, said = watch(tmp_path, Layout(replicate=4))
    for begin in range(1, 97, 8):
        steps = range(begin, begin + 8)
        trainer.pace = [(n, (1.0 + n % 3 / 100, 1.01, 1.25, 1.0)) for n in steps]
        machines.act()
    (finding,) = [record for record in run_log.kept if isinstance(record, Finding)]
    verdict = run_log.kept[-1]
    assert isinstance(verdict, Event)
    assert (finding.kind, finding.subject, finding.severity) == ("straggler", "rank 2", "warning")
    assert finding.step <= 72
    assert verdict.kind == "machine-verdict"
    assert (verdict.data["kind"], verdict.data["ranks"]) == ("straggler", [2])
    assert verdict.data["sound_step"] is None
    assert verdict.data["slower"] == pytest.approx(0.24, abs=0.02)
    assert verdict.data["lost_s"] == pytest.approx(0.24, abs=0.02)
    assert "node1" in said[-1]
    assert finding.sentence in said[-1]


def test_stages_of_a_pipeline_are_no_peers(tmp_path: Path) -> None:
    machines, trainer, run_log, _ = watch(tmp_path, Layout(pipeline=2, replicate=2))
    trainer.pace = [(step, (1.0, 1.01, 1.5, 1.51)) for step in range(1, 200)]
    machines.act()
    assert [record.kind for record in run_log.kept] == ["machine-watch"]


def test_what_is_watched_is_said_once_and_again_when_it_changes(tmp_path: Path) -> None:
    _, _, run_log, said = watch(tmp_path, Layout(pipeline=2))
    (told,) = run_log.kept
    assert (told.kind, told.data["stragglers"], told.data["weights"], told.data["numbers"]) == (
        "machine-watch", False, False, False,
    )  # fmt: skip
    assert said == [told.data["text"]]
    assert "not watched for slow ranks" in said[0]
    journal = Journal(RunFolder(tmp_path), 1)
    journal.append(told)
    journal.close()
    assert watch(tmp_path, Layout(pipeline=2))[3] == []
    assert "among 2 replicas" in watch(tmp_path, Layout(replicate=2))[3][0]
