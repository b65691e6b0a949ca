"""Steps on a device that the host runs ahead of, by a clock that both share."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import longhaul.train.evaluation
from fakes import FakeClock
from longhaul.core.clocks import STEP_BUCKETS, tokens_per_second
from longhaul.core.records import StepRecord
from longhaul.model.compiling import Forms
from longhaul.monitor.throughput import Throughput
from longhaul.train.drain import Drain, Pace, dealt_out
from longhaul.train.evaluation import Evaluation
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer

MakeTrainer = Callable[..., Trainer]
QUEUED_S = 0.001
"""What the host takes to queue a step."""


class Device:
    """Works through its queue while time passes for the host."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.free_at = clock.monotonic()

    def queue(self, seconds: float) -> None:
        self.free_at = max(self.free_at, self.clock.monotonic()) + seconds

    def wait(self) -> None:
        self.clock.advance(max(0.0, self.free_at - self.clock.monotonic()))

    def event(self) -> "Mark":
        return Mark(self)


class Mark:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, -1.0

    def record(self) -> "Mark":
        self.at = max(self.device.free_at, self.device.clock.monotonic())
        return self

    def query(self) -> bool:
        return self.device.clock.monotonic() >= self.at

    def synchronize(self) -> None:
        self.device.clock.advance(max(0.0, self.at - self.device.clock.monotonic()))

    def elapsed_time(self, end: "Mark") -> float:
        return 1e3 * (end.at - self.at)


def on_a_device(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, step_s: Any) -> Device:
    """Have the trainer's steps take `step_s(number)` on a device, and none on the host."""
    clock = trainer._parts.clock
    assert isinstance(clock, FakeClock)
    device, make, made = Device(clock), TrainingStep.__call__, [0]

    def queued(step: TrainingStep, *given: Any, **named: Any) -> torch.Tensor:
        made[0] += 1
        device.queue(step_s(made[0]))
        clock.advance(QUEUED_S)
        return make(step, *given, **named)

    def evaluated(*_: Any) -> Evaluation:
        device.queue(7.0)
        device.wait()
        return Evaluation({}, 1)

    monkeypatch.setattr(TrainingStep, "__call__", queued)
    monkeypatch.setattr(longhaul.train.evaluation, "evaluate", evaluated)
    trainer._drain = Drain(torch.device("cpu"), trainer._parts.time_buckets, device.event)
    return device


def step_seconds(record: StepRecord) -> float:
    return sum(record.seconds.get(bucket, 0.0) for bucket in STEP_BUCKETS)


SETS = (
    "train.steps=80", "batch.stages=[]", "evaluation.interval_steps=25",
    "checkpoint.interval_steps=40", "checkpoint.snapshot_interval_steps=10",
)  # fmt: skip


@pytest.mark.parametrize("away_s", [0.0, 5.0])
def test_throughput_is_that_of_the_device_also_after_an_evaluation_or_a_save(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, away_s: float
) -> None:
    """Also where the host is kept from looking for a while: a full disk, a slow reader, a pause."""
    trainer = make_trainer(*SETS)
    device = on_a_device(trainer, monkeypatch, lambda number: 1.0)
    throughput, seen, total = Throughput(), [], 0.0
    began = device.clock.monotonic()
    for record in trainer.steps():
        total += sum(record.seconds.values())
        if not isinstance(record, StepRecord):
            continue
        throughput.see(record)
        seen.append(step_seconds(record))
        assert throughput.tokens_per_second == pytest.approx(record.tokens / 1.0, rel=0.05)
        if record.step in (12, 60):
            device.clock.advance(away_s)
    assert seen == pytest.approx([1.0] * 80, abs=0.02)
    assert total == pytest.approx(device.clock.monotonic() - began, abs=0.01)


def test_steps_seen_complete_together_share_their_time_as_the_device_took_it(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(*SETS, "evaluation.interval_steps=0", "checkpoint.interval_steps=0")
    device = on_a_device(trainer, monkeypatch, lambda number: 0.5 if number % 2 else 0.1)
    steps = trainer.steps()
    before = [next(r for r in steps if isinstance(r, StepRecord)) for _ in range(20)]
    device.clock.advance(60.0)  # the host is stopped
    rest = [record for record in steps if isinstance(record, StepRecord)]
    together = [record for record in rest if step_seconds(record) > 1.0]
    assert len(together) > 8, "all that were under way, not the first of them alone"
    odd, even = ([step_seconds(r) for r in together if r.step % 2 == rest] for rest in (1, 0))
    assert odd == pytest.approx([5 * even[0]] * len(odd), rel=0.01)
    assert [step_seconds(r) for r in before] == pytest.approx([0.5, 0.1] * 10, abs=0.01)
    assert all(tokens_per_second(record) < 1e6 for record in rest)


def test_a_rollback_amid_steps_seen_together_leaves_no_record_of_them(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes back takes the records of all steps first; none comes again afterwards."""
    trainer = make_trainer(*SETS, "evaluation.interval_steps=0", "checkpoint.interval_steps=0")
    device = on_a_device(trainer, monkeypatch, lambda number: 1.0)
    seen: list[int] = []
    went_back = False
    for record in trainer.steps():
        if not isinstance(record, StepRecord):
            continue
        seen.append(record.step)
        if record.step == 13:
            device.clock.advance(60.0)
        if record.step == 15 and not went_back:
            went_back = True
            left = [later.step for later in trainer.completed()]
            assert left == list(range(16, 16 + len(left)))
            seen += left
            trainer.roll_back_in_memory(10)
        if record.step == 20 and went_back:
            break
    back = seen.index(11, 11)
    assert seen[back:] == list(range(11, 21))


def test_a_step_that_compiles_takes_nothing_from_those_before_and_after_it(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(*SETS, "evaluation.interval_steps=0", "checkpoint.interval_steps=0")
    device = on_a_device(trainer, monkeypatch, lambda number: 1.0)
    queue = TrainingStep.__call__

    def compiled(step: TrainingStep, *given: Any, **named: Any) -> torch.Tensor:
        device.clock.advance(60.0 if trainer.position.step == 40 else 0.0)
        return queue(step, *given, **named)

    monkeypatch.setattr(TrainingStep, "__call__", compiled)
    monkeypatch.setattr(Forms, "is_new", lambda *_: trainer.position.step == 40)
    throughput = Throughput()
    for record in trainer.steps():
        if isinstance(record, StepRecord):
            assert step_seconds(record) == pytest.approx(1.0, abs=0.02)
            throughput.see(record)
            assert throughput.tokens_per_second == pytest.approx(record.tokens / 1.0, rel=0.02)


@pytest.mark.parametrize(("step_s", "ahead"), [(0.1, 16), (48.0, 2)])
def test_the_host_runs_ahead_by_seconds_of_the_device_not_by_minutes(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, step_s: float, ahead: int
) -> None:
    trainer = make_trainer(*SETS)
    device = on_a_device(trainer, monkeypatch, lambda number: step_s)
    began = device.clock.monotonic()
    lags = [r.lag_steps for r in trainer.steps() if isinstance(r, StepRecord)]
    assert max(lags) <= ahead
    idle_s = device.clock.monotonic() - began - 80 * step_s - 3 * 7.0
    assert idle_s < 0.1 + 0.01 * 80 * step_s, "the device never waits for the host"


def test_what_is_dealt_out_adds_up_and_only_steps_share() -> None:
    dealt = dealt_out({"training": 1.0, "evaluation": 9.0, "data_wait": 0.1}, (0.3, 0.3, 0.4))
    assert [d["training"] for d in dealt] == pytest.approx([0.3, 0.3, 0.4])
    assert [d.get("evaluation") for d in dealt] == [9.0, None, None]
    assert sum(sum(d.values()) for d in dealt) == pytest.approx(10.1, abs=1e-9)


def test_what_is_said_before_a_batch_tells_of_the_device_which_is_kept_busy() -> None:
    """An evaluation of 50 batches of 4 s each would else be silent for 200 s at its end."""
    device = Device(FakeClock())
    pace, began, ahead = Pace(torch.device("cpu"), device.event), device.clock.monotonic(), []
    for _ in range(50):
        ahead.append(device.free_at - device.clock.monotonic())
        device.queue(4.0)
        pace.queued()
    device.wait()
    assert max(ahead) <= 4.0
    assert device.clock.monotonic() - began == pytest.approx(200.0)
