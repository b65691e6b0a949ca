from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from longhaul.checkpoint.capture import capture
from longhaul.checkpoint.loader import read_facts, restore
from longhaul.core.errors import NeedsPerson
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.ledger import LedgerState, fold, fold_all
from longhaul.train import effective
from longhaul.train.effective import parts_for
from longhaul.train.state import Rewarm, training_state
from longhaul.train.trainer import Trainer

MakeTrainer = Callable[..., Trainer]

STEADY = (
    "optim.schedule.shape=constant", "optim.schedule.warmup_steps=0",
    "checkpoint.snapshot_interval_steps=2",
)  # fmt: skip


def decision(kind: str, **data: Any) -> Decision:
    return Decision(kind=kind, attempt=1, step=0, time=0.0, who="test", reason="", data=data)


def to_reset(*what: str, rewarm_steps: int = 0) -> Decision:
    data = {"actions": ["reset"], "reset": list(what), "rewarm_steps": rewarm_steps}
    return decision("recover", cause="gradient-spike", **data)


def to_swap(name: str) -> Decision:
    return decision("set", path="optim.name", value=name)


def train_to(trainer: Trainer, step: int) -> list[StepRecord | Event]:
    seen = []
    for record in trainer.steps():
        seen.append(record)
        if isinstance(record, StepRecord) and record.step == step:
            break
    return seen


def events(records: list[StepRecord | Event], kind: str) -> list[Event]:
    return [r for r in records if isinstance(r, Event) and r.kind == kind]


def any_state(trainer: Trainer) -> bool:
    return any(tensor.any() for tensor in trainer.training_step.optimizer.tensors().values())


def test_a_rewarm_rises_to_one_and_ends() -> None:
    rewarm = Rewarm(begin=10, steps=3)
    assert [rewarm.factor(step) for step in (9, 10, 11, 12, 13)] == [1, 0.25, 0.5, 0.75, 1]


def test_a_reset_throws_the_state_away_once_and_the_rate_rises_again(
    make_trainer: MakeTrainer,
) -> None:
    trainer = make_trainer(*STEADY)
    train_to(trainer, 4)
    assert any_state(trainer)
    trainer.apply(to_reset("optimizer", rewarm_steps=3))
    assert not any_state(trainer)
    records = list(trainer.steps())
    steps = [r for r in records if isinstance(r, StepRecord)]
    assert [r.learning_rate for r in steps[:5]] == [5e-4, 1e-3, 1.5e-3, 2e-3, 2e-3]
    assert [r.warmup for r in steps[:5]] == [True, True, True, False, False]
    (told,) = events(records, "state-reset")
    assert told.data == {"number": 1, "what": ["optimizer"], "rewarm_steps": 3}


def test_an_older_state_is_reset_when_restored_and_a_newer_one_is_not(
    make_trainer: MakeTrainer,
) -> None:
    trainer = make_trainer(*STEADY)
    ring, step = trainer._parts.snapshots, trainer.training_step
    train_to(trainer, 4)
    trainer.apply(to_reset("optimizer", rewarm_steps=2))
    train_to(trainer, 7)
    newer = capture(training_state(step, trainer._parts.progress))
    assert newer.facts["progress"]["resets_done"] == 1
    trainer.roll_back(partial(ring.hand_back, 6))
    trainer.apply(decision("note"))
    assert any_state(trainer)
    assert trainer._parts.progress.rewarm == Rewarm(4, 2)
    trainer.roll_back(partial(ring.hand_back, 2))
    assert any_state(trainer), "as it was before the reset"
    trainer.apply(decision("note"))
    assert not any_state(trainer)
    assert trainer._parts.progress.rewarm == Rewarm(2, 2)


def test_a_reset_of_the_data_begins_its_order_again(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(*STEADY)
    train_to(trainer, 3)
    trainer.apply(to_reset("data"))
    first = next(r for r in trainer.steps() if isinstance(r, StepRecord))
    assert (first.step, first.draw) == (4, 0)


def test_state_of_before_resets_were_known_still_loads(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    progress = trainer._parts.progress
    facts = dict(progress.facts())
    del facts["resets_done"], facts["rewarm"]
    progress.take_back({}, facts)
    assert (progress.resets_done, progress.rewarm.factor(0)) == (0, 1.0)


def test_an_optimizer_is_swapped_and_swapped_back(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(*STEADY, "optim.weight_decay=0.0")
    before = train_to(trainer, 3)
    trainer.apply(to_swap("sgdw"))
    assert not any_state(trainer)
    assert trainer.live_settings()["optimizer.name"] == "sgdw"
    assert trainer.live_settings()["matrix.momentum"] == 0.9
    middle = train_to(trainer, 6)
    trainer.apply(to_swap("adamw"))
    assert "matrix.beta2" in trainer.live_settings()
    after = list(trainer.steps())
    assert not events(before, "optimizer-swapped")
    (to_sgdw,), (back,) = events(middle, "optimizer-swapped"), events(after, "optimizer-swapped")
    assert to_sgdw.data == {"old": "adamw", "new": "sgdw", "state": "fresh"}
    assert (back.data["old"], back.data["new"]) == ("sgdw", "adamw")
    assert [r.step for r in after if isinstance(r, StepRecord)] == list(range(7, 13))


def test_a_rule_that_is_not_the_one_asked_for_makes_no_step(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(*STEADY)
    monkeypatch.setattr(effective, "fit_optimizer", lambda *_: None)  # somebody forgot to
    with pytest.raises(NeedsPerson, match=r"optimizer\.name: live 'adamw', asked for 'sgdw'"):
        trainer.apply(to_swap("sgdw"))


def test_a_checkpoint_of_before_the_swap_is_swapped_when_restored(
    make_trainer: MakeTrainer, tmp_path: Any
) -> None:
    trainer = make_trainer(*STEADY)
    train_to(trainer, 4)
    list(trainer.save()), list(trainer.saved(wait=True))
    path = tmp_path / "checkpoints" / "step-4"
    ledger = fold(LedgerState(), to_swap("sgdw"))
    # A restart builds what is in force, which is not what the checkpoint holds.
    later = make_trainer(*STEADY, ledger=ledger, folder="other")
    assert later.training_step.optimizer.name == "sgdw"
    parts = later._parts
    later.roll_back(
        lambda parts_of: restore(path, parts_of(read_facts(path).facts)),
    )
    assert later.training_step.optimizer.name == "adamw"
    assert any_state(later)
    later.apply(decision("note"))
    assert later.training_step.optimizer.name == "sgdw"
    assert not any_state(later)
    records = list(later.steps())
    assert [e.data["new"] for e in events(records, "optimizer-swapped")][-1] == "sgdw"
    assert parts.progress.settings.optim.name == "sgdw"


def test_a_snapshot_of_another_rule_is_gone_back_to_and_swapped(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(*STEADY)
    ring = trainer._parts.snapshots
    train_to(trainer, 5)
    trainer.apply(to_swap("sgdw"))
    train_to(trainer, 8)
    assert [kept.step for kept in ring.kept()] == [0, 2, 4, 5, 6]
    trainer.roll_back(partial(ring.hand_back, 2))
    assert trainer.training_step.optimizer.name == "adamw"
    trainer.apply(decision("note"))
    assert trainer.training_step.optimizer.name == "sgdw"


def test_facts_of_an_unknown_rule_leave_the_live_one(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    step, progress = trainer.training_step, trainer._parts.progress
    live = step.optimizer
    parts_for(step, progress, {"optim": {"name": "sorcery"}})
    assert step.optimizer is live


def test_resets_are_counted_in_the_ledger() -> None:
    state = fold_all([to_reset("optimizer"), to_swap("sgdw"), to_reset("loss-scale")])
    assert [(reset.number, reset.what) for reset in state.resets] == [
        (1, ("optimizer",)),
        (2, ("loss-scale",)),
    ]
