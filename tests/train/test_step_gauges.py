"""Steps that read gauges: what they read, and that nothing else comes of it."""

import math
from collections.abc import Callable

import pytest
import torch

from longhaul.config.load import load_recipe
from longhaul.core.records import StepRecord
from longhaul.data.batches import Batch
from longhaul.model.initialise import build, to_number_format
from longhaul.monitor.gauges import Readings, declared
from longhaul.optim.gate import LossScale
from longhaul.optim.update_rules import build_optimizer
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer

MakeTrainer = Callable[..., Trainer]
TINY = (
    "model.width=16", "model.layers=2", "model.heads=2", "model.context=16",
    "model.vocab_multiple=64", "batch.sequence_length=16", "batch.stages=[]",
    "optim.schedule.warmup_steps=0",
)  # fmt: skip
SOURCES = ("books", "web", "unread")


def make_step(*overrides: str) -> TrainingStep:
    recipe = load_recipe("drill", [*TINY, *overrides]).recipe
    device = torch.device("cpu")
    model = build(recipe.model, 30, recipe.seed)
    to_number_format(model, recipe.precision)
    half = recipe.precision.half_weights
    return TrainingStep(
        model,
        build_optimizer(model, recipe.optim),
        device,
        recipe.precision,
        recipe.seed,
        loss_scale=LossScale(recipe.optim.loss_scale, device) if half == "fp16" else None,
        sources=SOURCES,
    )


def some_batch(number: int = 0, sequences: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(number)
    window_BT = torch.randint(30, (sequences, 17), generator=generator)
    source_B = torch.arange(sequences) % 2
    return Batch(window_BT[:, :-1], window_BT[:, 1:], sequences * 16, number, 0, source_B)


def after_steps(step: TrainingStep, read_gauges: bool, micro_sequences: int) -> list[bytes]:
    """Everything that a step leaves behind: figures of each of four steps, weights, state."""
    tensors = [
        step(some_batch(number), micro_sequences, 1e-2, read_gauges)[: step.num_figures]
        for number in range(4)
    ]
    weights = [weight.detach() for weight in step.model.parameters()]
    state = [tensor.float() for tensor in step.optimizer.tensors().values()]
    tensors += [*weights, *state, torch.get_rng_state()]
    return [tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize(
    "overrides",
    [
        ("optim.name=adamw",),
        ("optim.name=muon", "model.window=4", "model.document_mask=false"),
        ("optim.name=lamb", "model.z_loss=1e-3"),
        ("optim.name=sgdw", "model.kv_heads=1"),
        ('precision.compute="bf16"', "model.logit_softcap=15.0"),
        ('precision.compute="bf16_weights"',),
        ('precision.compute="fp16_weights"', "optim.name=sgdw"),
    ],
    ids=str,
)
@pytest.mark.parametrize("micro_sequences", [6, 4])
def test_reading_gauges_changes_no_bit_of_training(
    overrides: tuple[str, ...], micro_sequences: int
) -> None:
    """With dropout, whose generator a reading might have drawn from."""
    common = ("model.dropout=0.1", *overrides)
    plain = after_steps(make_step(*common), False, micro_sequences)
    assert after_steps(make_step(*common), True, micro_sequences) == plain


def test_a_whole_run_with_gauges_has_the_bits_of_one_without(make_trainer: MakeTrainer) -> None:
    found = []
    for interval in (0, 1):
        trainer = make_trainer(f"monitor.gauge_interval_steps={interval}", folder=str(interval))
        records = [record for record in trainer.steps() if isinstance(record, StepRecord)]
        assert all(bool(record.gauges) == bool(interval) for record in records)
        assert all(bool(record.totals) == bool(interval) for record in records)
        weights = [weight.tolist() for weight in trainer.training_step.model.parameters()]
        found.append(([record.loss for record in records], weights))
    assert found[0] == found[1]


def test_every_gauge_that_is_declared_is_read_and_no_other() -> None:
    step = make_step()
    read = step.readings(step(some_batch(), 3, 1e-2, read_gauges=True).tolist())
    by_kind = {
        "layer": set(read.gauges),
        "model": {name for name in read.totals if "." not in name},
        "role": {name.partition(".")[0] for name in read.totals if "." in name},
        "source": {"source_losses"} if read.source_losses else set(),
    }
    wanted: dict[str, set[str]] = {kind: set() for kind in by_kind}
    for gauge in declared():
        wanted[gauge.per].add(gauge.name)
        assert gauge.unit
        assert gauge.meaning
    wanted["model"] -= {"noise_scale"} - set(read.totals)  # the noise may hide it
    assert by_kind == wanted
    assert all(len(row) == 2 for row in read.gauges.values())


def test_a_step_without_gauges_has_none() -> None:
    step = make_step()
    read = step.readings(step(some_batch(), 3, 1e-2, read_gauges=False).tolist())
    assert read == Readings()


@pytest.mark.parametrize("micro_sequences", [6, 4])
def test_outputs_and_losses_of_sources_equal_those_of_the_logits(micro_sequences: int) -> None:
    step, batch = make_step("model.dropout=0.0", "model.z_loss=1e-2"), some_batch()
    with torch.no_grad():
        logits = step.model(batch.tokens_BT).double()
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.targets_BT.flatten(), reduction="none"
    ).view(6, 16)
    normaliser = logits.logsumexp(dim=-1)
    figures = step(batch, micro_sequences, 1e-2, read_gauges=True).tolist()
    read = step.readings(figures)
    assert read.source_losses == pytest.approx(
        {"books": losses[::2].mean().item(), "web": losses[1::2].mean().item()}, rel=1e-5
    )
    means = [normaliser[begin : begin + micro_sequences].mean() for begin in (0, micro_sequences)]
    mean = means[0] if micro_sequences == 6 else (means[0] + means[1]) / 2
    assert read.totals["output_logit_max"] == pytest.approx(logits.max().item(), rel=1e-5)
    assert read.totals["logsumexp_max"] == pytest.approx(normaliser.max().item(), rel=1e-5)
    assert read.totals["logsumexp_mean"] == pytest.approx(mean.item(), rel=1e-5)


def test_a_broken_source_does_not_hide_the_loss_of_another() -> None:
    step, batch = make_step(), some_batch()
    broken = batch.tokens_BT.clone()
    broken[0] = 29  # in no other sequence
    whole = batch.tokens_BT[1:].clamp(max=28)
    tokens_BT = torch.cat((broken[:1], whole))
    with torch.no_grad():
        step.model.tokens.weight[29] = math.nan
    batch = Batch(tokens_BT, batch.targets_BT.clamp(max=28), 96, 0, 0, batch.source_B)
    step.model.head = torch.nn.Linear(16, 64, bias=False)  # whose rows are all whole
    read = step.readings(step(batch, 3, 1e-2, read_gauges=True).tolist())
    assert math.isnan(read.source_losses["books"])
    assert math.isfinite(read.source_losses["web"])
    assert "unread" not in read.source_losses
    assert "noise_scale" not in read.totals


@pytest.mark.parametrize("compute", ["float32", "fp16_weights"])
def test_norms_of_roles_make_up_the_norm_and_noise_is_that_of_the_first_micro_batch(
    compute: str,
) -> None:
    options = (f'precision.compute="{compute}"', "model.dropout=0.0", "optim.loss_scale.initial=64")
    found = []
    for number in range(8):
        step, batch = make_step(*options), some_batch(number)
        whole = step(batch, 2, 1e-2, read_gauges=True).tolist()
        totals = step.readings(whole).totals
        norms = [value for name, value in totals.items() if name.startswith("gradient_norm.")]
        assert math.hypot(*norms) == pytest.approx(whole[1], rel=1e-5)
        first = Batch(batch.tokens_BT[:2], batch.targets_BT[:2], 32, number, 0)
        alone = make_step(*options)(first, 2, 1e-2, read_gauges=False).tolist()
        small, large = alone[1] ** 2, whole[1] ** 2
        signal, noise = (96 * large - 32 * small) / 64, (small - large) / (1 / 32 - 1 / 96)
        rel = 1e-3 if compute == "float32" else 0.3
        if signal > 0.05 * large and noise > 0:
            found.append(number)
            assert totals["noise_scale"] == pytest.approx(noise / signal, rel=rel)
        assert "noise_scale" not in step.readings(step(batch, 6, 1e-2, True).tolist()).totals
    assert found


def test_a_replay_that_does_not_know_sources_reads_all_else() -> None:
    step, batch = make_step(), some_batch()
    unknown = Batch(batch.tokens_BT, batch.targets_BT, batch.num_targets, 0, 0)
    read = step.readings(step(unknown, 3, 1e-2, read_gauges=True).tolist())
    assert not read.source_losses
    assert "weight_norm.matrix" in read.totals
