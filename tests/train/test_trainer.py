from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from longhaul.core.errors import NeedsPerson
from longhaul.core.faults import HANDLERS, Point
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.data.batches import BatchRequest
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.parallel.pipeline import Pass
from longhaul.train.trainer import Trainer

MakeTrainer = Callable[..., Trainer]


def decision(kind: str, from_step: int = 0, **data: Any) -> Decision:
    return Decision(
        kind=kind,
        attempt=1,
        step=0,
        from_step=from_step,
        time=0.0,
        who="test",
        reason="",
        data=data,
    )


def steps(trainer: Trainer) -> list[StepRecord]:
    return [record for record in trainer.steps() if isinstance(record, StepRecord)]


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.training_step.model.parameters()]


def test_a_run_yields_every_step_once_and_learns(make_trainer: MakeTrainer) -> None:
    records = steps(make_trainer())
    assert [record.step for record in records] == list(range(1, 13))
    assert records[-1].loss < records[0].loss - 0.1
    assert [r.draw for r in records[1:]] == [r.next_draw for r in records[:-1]]


def test_records_carry_everything_scheduled(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    records = steps(trainer)
    assert [r.sequence_length for r in records] == [16] * 6 + [32] * 6
    assert [r.warmup for r in records] == [True] * 3 + [False] * 9
    assert [r.step for r in records if r.evaluation_due] == [5, 10]
    assert [r.step for r in records if r.save_due] == [4, 8]
    assert [r.step for r in records if r.gauges] == [3, 6, 9, 12]
    gauges = records[2].gauges
    assert all(len(layers) == 1 for layers in gauges.values())
    assert gauges["residual_max"][0] > gauges["residual_rms"][0] > 0
    sources = {source.name for source in trainer._parts.dataset.sources}
    assert set().union(*(record.source_losses for record in records)) == sources
    assert records[2].totals["update_ratio.matrix"] > 0


def test_the_rate_follows_the_schedule(make_trainer: MakeTrainer) -> None:
    rates = [record.learning_rate for record in steps(make_trainer())]
    assert rates[:4] == pytest.approx([5e-4, 1e-3, 1.5e-3, 2e-3])
    assert rates[-1] < 4e-4


def test_accumulation_gives_the_gradient_of_the_whole_batch(make_trainer: MakeTrainer) -> None:
    common = ("train.steps=4", "optim.schedule.warmup_steps=0", "model.dropout=0.0")
    whole = make_trainer(*common, "batch.micro_sequences=8", "batch.sequences=8")
    parts = make_trainer(*common, "batch.micro_sequences=2", "batch.sequences=8", folder="other")
    first, second = steps(whole), steps(parts)
    for a, b in zip(first, second, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        assert a.gradient_norm == pytest.approx(b.gradient_norm, rel=1e-4)


def test_the_loss_is_the_mean_over_all_target_tokens(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("model.dropout=0.0", "batch.micro_sequences=4")
    model = trainer.training_step.model
    request = trainer._request(0, trainer.settings.batch_at(0))
    batch = trainer._parts.batches.read(request)
    with torch.no_grad():
        logits = model(batch.tokens_BT).double()
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.targets_BT.flatten(), reduction="mean"
    )
    assert steps(trainer)[0].loss == pytest.approx(float(expected), rel=1e-5)


def test_a_decision_holds_from_the_next_step_on(make_trainer: MakeTrainer) -> None:
    trainer, rates = make_trainer("optim.schedule.shape=constant"), {}
    for record in trainer.steps():
        if isinstance(record, StepRecord):
            rates[record.step] = record.learning_rate
            if record.step == 7:
                trainer.apply(decision("set", path="optim.lr", value=1e-5))
    assert rates[7] == 2e-3
    assert rates[8] == rates[12] == 1e-5


def test_a_scheduled_override_begins_at_its_step_in_every_attempt(
    make_trainer: MakeTrainer,
) -> None:
    ledger = fold(LedgerState(), decision("set", 9, path="optim.lr", value=1e-5))
    trainer = make_trainer("optim.schedule.shape=constant", ledger=ledger)
    records = list(trainer.steps())
    rates = {r.step: r.learning_rate for r in records if isinstance(r, StepRecord)}
    assert rates[9] == 2e-3
    assert rates[10] == 1e-5
    begins = [r for r in records if isinstance(r, Event) and r.kind == "override-begins"]
    assert [event.step for event in begins] == [9]


def test_skipped_draws_are_passed_over_and_steps_go_on_counting(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(ledger=fold(LedgerState(), decision("skip", begin=10, end=30)))
    records = steps(trainer)
    assert [r.step for r in records] == list(range(1, 13))
    assert records[-1].next_draw == 6 * 8 + 6 * 8 + 20


def test_settings_that_the_optimizer_does_not_hold_stop_the_run(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    optimizer = trainer.training_step.optimizer
    honest = optimizer.live_settings
    optimizer.live_settings = lambda: honest() | {"matrix.beta2": 0.9}  # type: ignore[method-assign]
    with pytest.raises(NeedsPerson, match=r"matrix\.beta2: live 0\.9, asked for 0\.95"):
        trainer.apply(decision("set", path="optim.lr", value=1e-5))


def test_a_masked_step_changes_no_weight_and_is_told(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer("train.steps=3", "optim.schedule.warmup_steps=0")

    def poisoned(loss: torch.Tensor, **context: Any) -> torch.Tensor:
        return loss * float("nan") if trainer.position.step == 1 else loss

    monkeypatch.setitem(HANDLERS, Point.LOSS, [poisoned])
    masked, kept = [], []
    for record in trainer.steps():
        if isinstance(record, StepRecord):
            masked.append(record.masked)
            kept.append(weights(trainer))
    assert masked == [False, True, False]
    assert all(a.equal(b) for a, b in zip(kept[0], kept[1], strict=True))
    assert not all(a.equal(b) for a, b in zip(kept[1], kept[2], strict=True))
    assert all(torch.isfinite(tensor).all() for tensor in kept[2])


def test_stopping_ends_at_the_border(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    made = 0
    for record in trainer.steps():
        made += isinstance(record, StepRecord)
        if made == 5:
            trainer.stop()
    assert made == 5
    assert not trainer.finished


def test_evaluation_leaves_training_as_it_was(make_trainer: MakeTrainer) -> None:
    with_it, without = make_trainer(), make_trainer("evaluation.interval_steps=0", folder="other")
    steps(with_it), steps(without)
    assert all(a.equal(b) for a, b in zip(weights(with_it), weights(without), strict=True))


def test_the_whole_split_is_evaluated_when_asked(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    part, whole = (
        next(e for e in trainer.evaluate(most) if isinstance(e, Event) and e.kind == "evaluation")
        for most in (256, None)
    )
    held_out = [source.held_out.num_tokens - 1 for source in trainer._parts.dataset.sources]
    assert whole.data["tokens"] == sum(held_out)
    assert part.data["tokens"] == 256 * len(held_out)
    assert set(whole.data["sources"]) == {"first", "second"}
    nats_per_bit = 0.6931471805599453
    assert whole.data["bits_per_byte"] == pytest.approx(whole.data["loss"] / nats_per_bit, rel=0.01)


def to_snapshot(trainer: Trainer, step: int) -> None:
    ring = trainer._parts.snapshots
    trainer.roll_back(partial(ring.hand_back, step))


def to_recover(**data: Any) -> Decision:
    return decision("recover", cause="loss-spike", actions=["rollback"], **data)


@pytest.mark.parametrize("extra", [(), ("optim.name=muon",)])
def test_after_a_rollback_the_same_steps_recur_bit_by_bit(
    make_trainer: MakeTrainer, extra: tuple[str, ...]
) -> None:
    trainer = make_trainer("checkpoint.snapshot_interval_steps=2", "model.dropout=0.2", *extra)
    made, went_back = [], False
    for record in trainer.steps():
        if isinstance(record, StepRecord):
            made.append(record)
            if record.step == 8 and not went_back:
                went_back = True
                at_eight = weights(trainer)
                to_snapshot(trainer, 6)
                trainer.enter("1.01")
            elif record.step == 8:
                assert all(a.equal(b) for a, b in zip(weights(trainer), at_eight, strict=True))
    assert [r.step for r in made] == [*range(1, 9), *range(7, 13)]
    assert [r.segment for r in made] == ["1.00"] * 8 + ["1.01"] * 6
    assert [r.step for r in made if r.redone] == [7, 8]
    for first, again in zip(made[6:8], made[8:10], strict=True):
        assert (first.loss, first.gradient_norm, first.draw) == (
            again.loss,
            again.gradient_norm,
            again.draw,
        )


def test_what_was_due_at_a_border_that_was_left_is_due_no_more(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("checkpoint.snapshot_interval_steps=4")
    kinds = []
    for record in trainer.steps():
        kinds.append((record.kind if isinstance(record, Event) else "step", record.step))
        if kinds[-1] == ("step", 8) and kinds.count(("step", 8)) == 1:
            to_snapshot(trainer, 4)
    assert kinds.count(("save-started", 4)) == 1
    assert kinds.count(("save-started", 8)) == 1


def test_a_rollback_with_a_skip_passes_the_data_over_and_counts_steps_on(
    make_trainer: MakeTrainer,
) -> None:
    trainer = make_trainer("checkpoint.snapshot_interval_steps=2")
    made: list[StepRecord] = []
    for record in trainer.steps():
        if isinstance(record, StepRecord):
            made.append(record)
            if len(made) == 5:
                to_snapshot(trainer, 2)
                skip = {"begin": made[2].draw, "end": made[4].next_draw}
                rollback = {"from": 5, "to": 2, "draw": made[2].draw}
                trainer.apply(to_recover(rollback=rollback, skip=skip))
    assert [r.step for r in made[4:8]] == [5, 3, 4, 5]
    assert made[5].draw == made[4].next_draw, "three steps' blocks are passed over"
    assert made[5].next_draw == made[5].draw + 8


def test_a_rollback_at_the_very_last_step_is_trained_on_from(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("checkpoint.snapshot_interval_steps=5")
    made = []
    for record in trainer.steps():
        if isinstance(record, StepRecord):
            made.append(record.step)
            if len(made) == 12:
                to_snapshot(trainer, 10)
    assert made == [*range(1, 13), 11, 12]
    assert trainer.finished


def test_snapshots_of_the_stretch_that_was_left_are_gone(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("checkpoint.snapshot_interval_steps=2")
    ring = trainer._parts.snapshots
    for record in trainer.steps():
        if record.step == 7:
            assert [kept.step for kept in ring.kept()] == [0, 2, 4, 6]
            to_snapshot(trainer, 4)
            assert [kept.step for kept in ring.kept()] == [0, 2, 4]
            break


def test_gradients_and_live_settings_do_not_survive_a_rollback(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("checkpoint.snapshot_interval_steps=3", "optim.schedule.shape=constant")
    for record in trainer.steps():
        if record.step == 5:
            break
    for parameter in trainer.training_step.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    to_snapshot(trainer, 3)
    trainer.apply(to_recover(set={"optim.lr": 1e-4}))
    assert all(p.grad is None for p in trainer.training_step.model.parameters())
    assert trainer.live_settings()["matrix.lr"] == 1e-4
    assert trainer.position.step == 3


def test_every_micro_batch_and_every_batch_of_an_evaluation_gives_a_sign_of_life(
    make_trainer: MakeTrainer,
) -> None:
    """Also where steps are replayed: it is the step that gives them."""
    trainer = make_trainer(
        "batch.stages=[]", "batch.sequences=16", "batch.micro_sequences=2", "train.steps=6",
        "evaluation.sequences=2",
    )  # fmt: skip
    signs: list[str] = []
    trainer._parts.time_buckets.watch(signs.append)
    steps(trainer)
    assert signs.count("training") >= 6 * (16 // 2 + 2), "and in the update"
    assert signs.count("evaluation") >= 256 // (2 * 32)


def test_every_pass_of_a_pipeline_gives_a_sign_of_life(make_trainer: MakeTrainer) -> None:
    """Of the only stage, so that nothing is sent; a rank that waits for another gives none."""
    trainer = make_trainer("batch.stages=[]")
    step, batch = trainer.training_step, trainer._parts.batches.read(BatchRequest(0, 6, 16))
    signs: list[int] = []
    step.alive = lambda: signs.append(1)
    given_in: list[int] = []

    class Stage:
        pipe = property(lambda self: self)
        own_stages = range(1)

        def run(self, shapes: list[Any], forward: Any, backward: Any) -> None:
            for number in range(len(shapes)):
                made = forward(Pass(0, number, True), None)
                given_in.append(len(signs))
                backward(Pass(0, number, False), made, None)
                given_in.append(len(signs))

        def shape_of(self, tokens_BT: torch.Tensor) -> torch.Size:
            return tokens_BT.shape

        def makes_loss(self, stage: int) -> bool:
            return True

    model = step.model
    step.passes.forward = lambda tokens_BT, targets_BT, **_: model(tokens_BT, targets_BT)
    step.parallel = cast(Any, SimpleNamespace(staged=Stage(), before_backward=lambda *_: None))
    step.compute(batch, 2)
    assert given_in == list(range(1, 7))


def test_tokens_ahead_count_for_as_long_as_their_stage_lasts(make_trainer: MakeTrainer) -> None:
    """The first update differs from a run without them, and a second stage is like none at all."""
    stages = "model.ahead_stages=[{from_step=0, weights=[0.5]}, {from_step=1, weights=[]}]"
    trainer, plain = make_trainer(stages), make_trainer(folder="plain")
    records, others = trainer.steps(), plain.steps()
    first, other = next(records), next(others)
    assert isinstance(first, StepRecord)
    assert isinstance(other, StepRecord)
    assert first.loss == other.loss
    assert first.gradient_norm != other.gradient_norm
    assert trainer.training_step.model.ahead == (0.5,)
    for _ in records:
        pass
    assert trainer.training_step.model.ahead == ()


def test_a_clamp_is_in_force_before_a_step_is_made(make_trainer: MakeTrainer) -> None:
    """As for the last evaluation of a run that has no step left."""
    decided = decision("set", 0, path="model.residual_clamp", value=7.0)
    trainer = make_trainer(ledger=fold(LedgerState(), decided))
    assert trainer.training_step.model.residual_clamp == 7.0
