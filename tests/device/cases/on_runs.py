"""What a run does besides steps: where it waits for the device, and which device it means."""

from itertools import groupby
from pathlib import Path
from threading import Thread

import pytest
import torch

import longhaul.run.train.build
import longhaul.run.train.elastic
import longhaul.train.elastic
from fakes import FakeClock
from longhaul.checkpoint.capture import capture
from longhaul.checkpoint.loader import restore
from longhaul.checkpoint.saver import Saver
from longhaul.config.load import load_recipe
from longhaul.core.clocks import TimeBuckets
from longhaul.core.errors import RecipeError
from longhaul.core.records import Event, StepRecord
from longhaul.data.batches import BatchRequest
from longhaul.data.dataset import Dataset
from longhaul.data.prepare import prepare
from longhaul.logbook.ledger import LedgerState
from longhaul.model.device import (
    Mark,
    generator_states,
    key_generators,
    page_locked,
    put_back_generators,
)
from longhaul.parallel.replicas import Deal, Replicas
from longhaul.run.diagnose.bundle import StepInput
from longhaul.run.diagnose.replays import Replayer, replay_each, settled
from longhaul.run.diagnose.rerun import on_device
from longhaul.run.train.build import build_parts
from longhaul.run.train.elastic import _device
from longhaul.train.coordinator import Coordinator
from longhaul.train.elastic import Place
from longhaul.train.sampling import sample_tokens
from longhaul.train.state import training_state
from longhaul.train.trainer import Identity, Trainer

TINY = (
    "train.steps=8", "model.width=16", "model.layers=1", "model.context=32",
    "batch.stages=[]", "batch.sequences=4", "batch.sequence_length=16", "batch.micro_sequences=2",
    "evaluation.interval_steps=5", "evaluation.tokens=64", "checkpoint.interval_steps=4",
    "checkpoint.snapshot_interval_steps=2", "checkpoint.snapshot_mb=64",
    "monitor.gauge_interval_steps=3", "optim.schedule.warmup_steps=3",
)  # fmt: skip
EVALUATION = "train.evaluation:_Passes.split_loss"
LOAN = ("train.borrowed_step:borrow_step", "checkpoint.capture:put_back")
REPLAY = ("run.diagnose.replays:Replayer.make", "run.diagnose.replays:Replayer.replay")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("prepared")
    return prepare(load_recipe("drill", TINY).recipe, folder, lambda _: None)


@pytest.fixture
def make_trainer(fake, dataset, tmp_path, monkeypatch):
    made = []

    def placed(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        with fake:  # a thread begins without it
            return page_locked(tensor, device)

    monkeypatch.setattr(longhaul.run.train.build, "page_locked", placed)

    def make(*overrides: str, replica: bool = False) -> Trainer:
        recipe = load_recipe("drill", [*TINY, *overrides]).recipe
        clock = FakeClock()
        saver = Saver(
            tmp_path / "checkpoints", attempt=1, still_owner=lambda: True, clock=clock,
            settled=True,
        )  # fmt: skip
        given = recipe, LedgerState(), dataset, fake.device, saver, TimeBuckets(clock)
        with fake.building():
            parts = build_parts(*given)
        made.append(parts)
        coordinator = None
        if replica:
            place = Place(1, "", parts.step, parts.progress, 1.0)
            coordinator = Coordinator(place)
        return Trainer(recipe, LedgerState(), parts, Identity(1, "1.00", 0), coordinator)

    yield make
    for parts in made:
        parts.batches.close()
        parts.saver.close()


def finished(trainer: Trainer, last: int = 8) -> list[StepRecord | Event]:
    records = list(trainer.steps())
    records += trainer.saved(wait=True)
    steps = [record.step for record in records if isinstance(record, StepRecord)]
    assert steps[-1] == last
    return records


@pytest.mark.parametrize("offload", [pytest.param("false", marks=pytest.mark.slow), "true"])
def test_training_waits_in_evaluation_alone(fake, make_trainer, offload: str) -> None:
    """Records, snapshots and saves come over without the host waiting for them."""
    fake.allowed = (EVALUATION,)
    records = finished(make_trainer(f"optim.offload={offload}"))
    kinds = {record.kind for record in records if isinstance(record, Event)}
    assert {"evaluation", "checkpoint"} <= kinds
    assert "checkpoint-failed" not in kinds
    assert fake.waited == {"tests", EVALUATION}
    assert {"record", "wait", "seed"} <= {what for what, _ in fake.module.asked}


def test_batches_are_page_locked_where_they_are_read(fake, make_trainer) -> None:
    """In the background, once a batch; all micro-batches are copied from there."""
    trainer = make_trainer("evaluation.interval_steps=0", "checkpoint.interval_steps=0")
    fake.pinned_on.clear()
    finished(trainer)
    tensors = 3  # tokens, targets, sources
    # Nobody has guessed the first batch.
    assert fake.pinned_on[:tensors] == ["MainThread"] * tensors
    assert set(fake.pinned_on[tensors:]) == {"batches_0"}
    assert len(fake.pinned_on) >= tensors * 8


@pytest.mark.parametrize("what", ["snapshot_interval_steps", "interval_steps"])
def test_the_state_is_copied_beside_the_next_pass(fake, make_trainer, what: str) -> None:
    """The device alone waits: the copies for the step before, the next update for the copies."""
    none = ("checkpoint.interval_steps=0", "checkpoint.snapshot_interval_steps=0")
    trainer = make_trainer("evaluation.interval_steps=0", *none, f"checkpoint.{what}=2")
    step, asked = trainer.training_step, fake.module.asked
    update, compute = step.optimizer.step, step.compute

    def logged(what, function):
        def call(*given, **named):
            asked.append((what, fake.device.index))
            return function(*given, **named)

        return call

    step.optimizer.step, step.compute = logged("update", update), logged("passes", compute)
    finished(trainer)
    wanted = ("beside waits", "beside copies", "passes", "waits", "update")
    order = [what for what, _ in groupby(what for what, _ in asked if what in wanted)]
    between = [*wanted, "passes", "update"]  # it is copied every other step
    begin = order.index("beside waits")
    assert order[begin : begin + 3 * len(between)] == 3 * between
    assert fake.waited == {"tests"}


def test_going_back_in_memory_does_not_wait(fake, make_trainer) -> None:
    trainer = make_trainer("evaluation.interval_steps=0", "checkpoint.interval_steps=0")
    for record in trainer.steps():
        if record.step == 5:
            trainer.stop()
    trainer.roll_back_in_memory(trainer.snapshots.kept()[0].step)
    assert trainer.position.step < 5
    assert fake.waited == {"tests"}


def test_a_checkpoint_is_restored(fake, make_trainer, tmp_path: Path) -> None:
    finished(make_trainer("evaluation.interval_steps=0", "train.steps=5"), 5)
    parts = make_trainer()._parts
    with fake.building():
        restore(tmp_path / "checkpoints" / "step-4", training_state(parts.step, parts.progress))
    assert parts.progress.position.step == 4


def test_a_loan_waits_at_both_ends(fake, make_trainer) -> None:
    trainer = make_trainer("evaluation.interval_steps=0", "train.steps=4")
    for _ in trainer.steps():
        pass
    fake.allowed = LOAN
    trainer.return_step(trainer.borrow_step(1))
    assert fake.waited == {"tests", *LOAN}


def test_sampling_waits_for_each_token(fake, make_trainer) -> None:
    trainer = make_trainer("model.context=16")
    fake.allowed = ("train.sampling:sample_tokens",)
    tokens = sample_tokens(
        trainer.training_step.model, [1, 2, 3], most_tokens=8, context=16, temperature=0.8,
        top_k=5, seed=1, device=fake.device,
    )  # fmt: skip
    assert len(list(tokens)) == 8
    assert fake.waited == {"tests", "train.sampling:sample_tokens"}


def input_of(trainer: Trainer) -> StepInput:
    batch = trainer._parts.batches.read(BatchRequest(0, 4, 16))
    return StepInput(1, trainer.settings, batch, 1e-3, 2, read_gauges=True)


def test_replays_on_the_own_device_and_on_another(fake, make_trainer) -> None:
    trainer = make_trainer()
    fake.allowed = (*REPLAY, "run.diagnose.replays:Replayer.bundle", *FILLING)
    replayer = Replayer(trainer.training_step, trainer.settings)
    bundle = replayer.bundle((input_of(trainer),))
    with settled(trainer.settings, None, fake.device):
        replay_each((bundle,), fake.device)
        assert fake.others_asked() == []
        fake.module.asked.clear()
        on_device("fakegpu:0")((bundle,))
    seeded = [number for what, number in fake.module.asked if what == "seed"]
    assert set(seeded) == {0}
    assert fake.module.current_device() == fake.device.index
    fake.module.asked.clear()


@pytest.mark.slow
def test_a_replay_in_plain_form_counts_on_the_host(fake, make_trainer) -> None:
    trainer = make_trainer()
    plain = "optim.optimizer:PortionsRule.update_by_torch"  # torch's loop reads its counters
    fake.allowed = (*REPLAY, *FILLING, "run.diagnose.replays:Replayer.bundle", plain)
    replayer = Replayer(trainer.training_step, trainer.settings)
    bundle = replayer.bundle((input_of(trainer),))
    with replayer.in_plain_form():
        replayer.replay(bundle)
    replay_each((bundle,), fake.device, plain=True)


FILLING = (
    "model.initialise:fill_weight",
    "monitor.weights:_Sample.__init__",
    "model.embedding:RotaryPositions.fill",
)  # fmt: skip


def is_there(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "fakegpu"


class Agreed:
    """Stands for `Replicas`: two of them, which never fail."""

    def __init__(self, number, lighthouse, generation, give, take, most_s, within) -> None:
        self.give, self.take = give, take
        self._joined = False

    def begin(self) -> tuple[Deal, bool]:
        return Deal(0, 2), False

    def sum(self, tensors: list[torch.Tensor]) -> None:
        Replicas.sum(self, tensors)

    def commit(self) -> bool:
        return True

    def lead(self) -> None:
        pass

    @property
    def _manager(self):
        return self

    def allreduce(self, flat, reduce_op):
        return self

    def wait(self) -> None:
        pass


def test_replicas_make_steps_and_heal_each_other(fake, make_trainer, monkeypatch) -> None:
    """The state is asked for on a thread of torchft's, which means device 0 until it says."""
    monkeypatch.setattr(longhaul.train.elastic, "Replicas", Agreed)
    fake.allowed = (EVALUATION, "train.elastic:Place._give")
    trainer = make_trainer("parallel.elastic=true", "machine.processes=2", replica=True)
    finished(trainer)
    place, given, meant = trainer.training_step.place, [], []

    def captured(parts):
        meant.append(fake.module.current_device())
        return capture(parts)

    monkeypatch.setattr(longhaul.train.elastic, "capture", captured)

    def give() -> None:
        with fake:  # a thread begins without it
            given.append(place.replicas.give())

    asking = Thread(target=give)
    asking.start()
    asking.join()
    assert meant == [fake.device.index]
    host = {
        name: torch.zeros(value.shape, dtype=value.dtype) if is_there(value) else value
        for name, value in given[0].items()
    }
    with fake.building():
        place.replicas.take(host)
    assert trainer.training_step(input_of(trainer).batch, 2, 1e-3, False).device == fake.device


def test_every_replica_has_the_device_of_its_number(fake, monkeypatch) -> None:
    monkeypatch.setattr(longhaul.run.train.elastic, "choose_device", torch.device)
    assert _device(1, "fakegpu") == fake.device
    assert fake.module.current_device() == 1
    fake.module.set_device(0)
    assert _device(1, "fakegpu") == fake.device
    assert fake.module.current_device() == 1
    with pytest.raises(RecipeError, match="replica 2 has no GPU of its own"):
        _device(2, "fakegpu")


def test_what_a_witness_draws_is_drawn_on_its_device(fake) -> None:
    """Without an argument torch means the device of the thread: here the one that trains."""
    other = torch.device("fakegpu:0")
    states = generator_states(other)
    key_generators(7, other)
    put_back_generators(states, other)
    assert fake.module.asked == [("state", 0), ("seed", 0), ("state", 0)]
    fake.module.asked.clear()


def test_a_thread_that_waits_means_the_device_that_it_waits_for(fake) -> None:
    mark = Mark(fake.device).record()
    thread = Thread(target=mark.synchronize)
    thread.start()
    thread.join()
    assert fake.module.asked == [("record", 1), ("wait", 1)]
